"""The operator that hands rows from program to program, and from one run of a program to its next.

    feed          exports..., source_row i32[T] -> [T, D]: row source_row[t] of the exports, one under another, as they
                  stood when the run began

An export of another program is that of its last run. One of the program's own is that of its previous run: all rows are
gathered before anything of this run is written, so a program can go on from where it was (drafts of drafts).
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.errors import ConfigError
from octavo.program.builder import fixed_width
from octavo.program.ir import Buffer, Program, Size


def check_feeds(programs: Mapping[str, Program]) -> None:
    """Every feed of a session's programs finds its exports. Raises ConfigError that names the first that does not."""
    for name, program in programs.items():
        for op in program.ops:
            for source in op.ins[:-1] if op.kind == "feed" else ():
                _check(programs, f"{name}: {op.outs[0]}", program.buffers[source])


def _check(programs: Mapping[str, Program], reader: str, wanted: Buffer) -> None:
    owner, export = parted(wanted.name)
    if owner not in programs:
        raise ConfigError(f"{reader} reads {export} of a program {owner}, which the session does not have")
    if export not in programs[owner].exports:
        raise ConfigError(f"{reader} reads {export}, which {owner} does not export")
    buffer = programs[owner].buffers[export]  # an export that linears eat stays `act` in a plain program, which is f32
    dtype = "f32" if buffer.dtype == "act" else buffer.dtype
    if dtype != wanted.dtype or len(buffer.shape) != 2 or not isinstance(buffer.shape[0], Size):
        kind = "int32" if wanted.dtype == "i32" else "float32"
        raise ConfigError(f"{reader} reads {export} of {owner}, which is no list of rows of {kind}")
    if (width := fixed_width(wanted)) != fixed_width(buffer):
        raise ConfigError(f"{reader} reads rows of {width} where {export} of {owner} has {fixed_width(buffer)}")


def parted(source: str) -> tuple[str, str]:
    """Program and export that a foreign buffer is called after."""
    owner, _, export = source.partition("/")
    return owner, export
