"""`octavo ps [URL]`: the models of a running server and the requests that run there now."""

from __future__ import annotations

import argparse
import json

from octavo.cli.remote import HELP, Remote
from octavo.cli.screen import table
from octavo.cli.times import seconds


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("url", nargs="?", help=HELP)
    parser.add_argument("--all", action="store_true", help="also the last requests that have ended")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")


def run(args: argparse.Namespace) -> int:
    remote = Remote(args.url)
    health, known = remote.json("health"), remote.json("v1/requests")["data"]
    requests = [each for each in known if args.all or each["state"] != "ended"]
    models = [(name, state) for name, state in health["models"].items()]
    table("", ("model", "state"), models)
    columns = ("request", "model", "state", "prompt", "cached", "output", "first token", "rate", "age")
    if requests:
        table("", columns, [row(each) for each in requests])
    else:
        print("no request of this key runs" if not args.all else "no request of this key is known")
    if args.json:
        print(json.dumps({"models": health["models"], "requests": requests}))
    return 0


def row(request: dict[str, object]) -> tuple[str, ...]:
    """One line about a request, as `ps` and `top` show it."""
    state, prompt, rate = request["state"], str(request["prompt_tokens"]), request["tokens_per_second"]
    return (
        str(request["id"]),
        str(request["model"]),
        str(request["finish_reason"] or state) if state == "ended" else str(state),
        f"{request['computed_tokens']} of {prompt}" if state == "prefill" else prompt,
        str(request["cached_tokens"]),
        str(request["output_tokens"]),
        seconds(request["first_token_seconds"]),
        f"{rate:.1f}/s" if isinstance(rate, float) else "",
        seconds(request["seconds"]),
    )
