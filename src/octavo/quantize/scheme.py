"""The schemes that a checkpoint can be written in, what is asked of a run, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GROUP_SIZES = (128, 64, 32)  # of calibrated schemes of four bits: the first that divides every matrix
TOKENS = 16_384  # of calibration text
WINDOW = 512  # tokens of one piece of calibration text


@dataclass(frozen=True, slots=True)
class Scheme:
    """bits: of a code. calibrated: text decides how codes are chosen, and the result is a folder of safetensors; the
    others keep the format of what they read, in groups of 32."""

    bits: int
    calibrated: bool
    help: str


SCHEMES: Mapping[str, Scheme] = {
    "q4": Scheme(4, False, "4 bits, a scale for 32 columns"),
    "q8": Scheme(8, False, "8 bits, a scale for 32 columns"),
    "gptq": Scheme(4, True, "4 bits, errors of a column made up for by the next ones"),
    "awq": Scheme(4, True, "4 bits with zero points, columns that matter scaled up first"),
    "smoothquant": Scheme(8, True, "8 bits a row, for activations of 8 bits"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """model: as users name it. text: what calibrates, None: Python's language reference. tokens: of it. group: columns
    of a scale, None: the scheme's own choice."""

    model: str
    out: Path
    scheme: str
    text: str | None = None
    tokens: int = TOKENS
    group: int | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """One matrix. error: of the values that it makes (calibrated: on the text; else the matrix itself) over their
    length; plain: that of rounding each number to the nearest, without what the scheme adds."""

    name: str
    bits: float
    error: float
    plain: float


@dataclass(frozen=True, slots=True)
class Report:
    """bytes: of the file or folder that was written; before: of the tensors that were read. group: columns of a scale,
    0: the whole row. tokens: of text that calibrated."""

    matrices: tuple[Written, ...]
    bytes: int
    before: int
    group: int
    tokens: int
