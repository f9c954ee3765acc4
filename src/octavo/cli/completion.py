"""`octavo completion SHELL`: a completion script, made from the parsers themselves."""

from __future__ import annotations

import argparse

from octavo.cli import main as cli

_BASH = """_octavo() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "{commands}" -- "$word")); return; fi
  case "$command" in
{cases}
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -W "$(octavo ls --names 2>/dev/null)" -- "$word")) ;;
  esac
}}
complete -F _octavo octavo
"""


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help='e.g. eval "$(octavo completion bash)"')


def run(args: argparse.Namespace) -> int:
    flags = {name: _flags(parser) for name, parser in cli.parsers().items()}
    if args.shell == "fish":
        print("complete -c octavo -n __fish_use_subcommand -f -a '" + " ".join(flags) + "'")
        for name, options in flags.items():
            for option in options:
                print(f"complete -c octavo -n '__fish_seen_subcommand_from {name}' -l {option.removeprefix('--')}")
        return 0
    cases = "\n".join(f'    {name}) local flags="{" ".join(options)}" ;;' for name, options in flags.items())
    if args.shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(_BASH.format(commands=" ".join(flags), cases=cases), end="")
    return 0


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
