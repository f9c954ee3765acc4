"""The process that runs a chat template: untrusted code from a model file, so it lives where it can be killed.

Run as a script by chat.py; imports nothing of Octavo. Frames both ways: u32 length, JSON. The first frame is
{source, globals, max_output, memory}, answered by {}; each one after it {messages, ...}, by {text} or {error, message}.
"""

from __future__ import annotations

import datetime
import json
import resource
import struct
import sys
from typing import Any, BinaryIO, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Refused(TemplateError):
    """The template itself said no (raise_exception)."""


class OutputLimitError(TemplateError):
    pass


class Generation(Extension):
    """{% generation %}...{% endgeneration %} marks what an assistant wrote, for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to {attribute!r} is refused")


def raise_exception(message: str) -> NoReturn:
    raise Refused(message)


def strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment(names: dict[str, Any]) -> Sandbox:
    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    sandbox.globals.pop("lipsum")
    sandbox.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, **names)
    sandbox.filters["tojson"] = tojson
    return sandbox


def refuse_private_names(sandbox: Sandbox, source: str) -> None:
    """A template has no business with private attributes, also in a branch that the dry run does not reach."""
    for node in sandbox.parse(source).find_all(nodes.Getattr):
        if node.attr.startswith("_"):
            raise SecurityError(f"access to {node.attr!r} is refused")


def read_frame(stream: BinaryIO) -> Any:
    head = stream.read(4)
    if len(head) < 4:
        sys.exit(0)
    return json.loads(stream.read(struct.unpack("<I", head)[0]))


def write_frame(stream: BinaryIO, value: Any) -> None:
    data = json.dumps(value).encode()
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def main() -> None:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    start = read_frame(stdin)
    resource.setrlimit(resource.RLIMIT_AS, (start["memory"], start["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    write_frame(stdout, {})
    template = None
    while True:
        request = read_frame(stdin)
        try:
            if template is None:
                sandbox = environment(start["globals"])
                refuse_private_names(sandbox, start["source"])
                template = sandbox.from_string(start["source"])
            size, parts = 0, []
            for part in template.generate(request):
                size += len(part)
                if size > start["max_output"]:
                    raise OutputLimitError(f"more than {start['max_output']} characters of output")
                parts.append(part)
            answer = {"text": "".join(parts)}
        except Exception as error:  # untrusted code may raise anything; the reader needs one line
            line = " ".join(str(error).split())[:300]
            answer = {"error": type(error).__name__, "message": line}
        write_frame(stdout, answer)


if __name__ == "__main__":
    main()
