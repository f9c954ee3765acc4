"""`python -m octavo.cli.reference`: docs/cli.md, from the parsers themselves (`make docs`)."""

from __future__ import annotations

import argparse

from octavo.cli import flags
from octavo.cli.main import parsers
from octavo.errors import OctavoError

_HEAD = """# The command line

Made by `make docs` from the commands themselves. Flags marked * are also an environment variable (`--max-num-seqs` is
`OCTAVO_MAX_NUM_SEQS`) and a key of the TOML file that `--config FILE` or `OCTAVO_CONFIG` names (`max_num_seqs = 32`).
A flag wins over the environment, the environment over the file, the file over the default; a variable that is set to
nothing counts as absent. Flags with `[no-]` are switches, `--flag=false` works too; in the environment and the file
they are true or false.
"""

# Arguments of a command that share their name with a flag and are none.
_OWN = {"batch": {"model"}, "explain": {"batch", "context"}}


def render() -> str:
    parts = [_HEAD]
    settable = {flag.key for flag in flags.ALL_FLAGS}
    for name, parser in parsers().items():
        parts.append(f"## octavo {name}\n\n{parser.description}\n\n| argument | meaning |\n|---|---|")
        given = settable - _OWN.get(name, set())
        parts.extend(_row(action, given) for action in parser._actions if action.dest != "help")
        parts.append("")
    parts.append("## Exit codes\n\n| code | kind | default word |\n|---|---|---|\n| 0 | success | |")
    parts.append("| 1 | `octavo batch`: complete, but some lines were refused | |")
    parts.extend(f"| {kind.exit_code} | {kind.__name__} | {kind.default_code} |" for kind in _kinds(OctavoError))
    parts.append("| 130 | interrupted by Ctrl-C | |\n| 141 | the reader of stdout went away | |\n")
    parts.append("A failure is one line on stderr: `error: WORD: MESSAGE`.\n")
    return "\n".join(parts)


def _row(action: argparse.Action, settable: set[str]) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        word = f"`--[no-]{action.option_strings[0].removeprefix('--')}`" + (" *" if action.dest in settable else "")
    elif action.option_strings:
        value = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.metavar
        word = f"`{action.option_strings[0]}{f' {value}' if value and action.nargs != 0 else ''}`"
        word += " *" if action.dest in settable else ""
    else:
        word = f"`{'|'.join(action.choices) if action.choices else action.metavar or action.dest.upper()}`"
    return f"| {word.replace('|', chr(92) + '|')} | {(action.help or '').replace('%%', '%')} |"


def _kinds(kind: type[OctavoError]) -> list[type[OctavoError]]:
    """The tree of errors.py; what other rooms derive from it ends no command."""
    own = [child for child in kind.__subclasses__() if child.__module__ == OctavoError.__module__]
    return [each for child in own for each in (child, *_kinds(child))]


if __name__ == "__main__":
    print(render(), end="")
