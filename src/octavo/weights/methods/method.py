"""What a quantization method of config.json is: which tensors of a file make one weight, and how its rows are read.

A method looks at headers alone when a checkpoint is opened; `Joined.open` gets the arrays of its parts. Arrays come as
the file has them: float16, bfloat16 and float8 as their bits.

Codes: quant_missing, quant_shape, quant_dtype, quant_mixed, quant_groups (65); bad_config, unsupported (78).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any, NoReturn, Protocol

import numpy as np

from octavo import _native
from octavo.errors import BadFileError, ConfigError
from octavo.weights.catalogue import TensorHeader, quoted
from octavo.weights.kinds import Kind, Tensor

ORDERED = "matrices quantized in the order of their activations are held as bf16, rounded"
FLOATS = ("F16", "BF16", "F32")
# Rows [begin, end) of a weight, leading axes counted together: a matrix.
Rows = Callable[[int, int], Tensor]


@dataclass(frozen=True, slots=True)
class Joined:
    """One weight that several tensors make. header: its name and shape; the method as dtype; the bytes of all parts.

    kind: what it is held as; kind_bytes: in how many bytes. parts: names, in the order in which open takes arrays.
    """

    header: TensorHeader
    parts: tuple[str, ...]
    kind: Kind
    kind_bytes: int
    open: Callable[..., Rows]
    note: str = ""


class Method(Protocol):
    """suffixes: ends of names, each of which marks a weight of this method; unused: of tensors that need no place."""

    suffixes: tuple[str, ...]
    unused: tuple[str, ...]
    notes: tuple[str, ...]

    def joined(self, stem: str, parts: Parts) -> Joined | None:
        """The weight whose tensors are named `stem` and a suffix; None where they are no weight of this method."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one stem. load: name -> its array; for what the headers do not tell."""

    stem: str
    headers: Mapping[str, TensorHeader]
    load: Callable[[str], Any] = field(repr=False)

    def has(self, suffix: str) -> bool:
        return self.stem + suffix in self.headers

    def need(self, suffix: str, dtypes: tuple[str, ...], rank: int | None = None) -> TensorHeader:
        name = self.stem + suffix
        header = self.headers.get(name)
        if header is None:
            bad("quant_missing", name, f"is missing beside the other tensors of {quoted(self.stem)}")
        if header.dtype not in dtypes:
            bad("quant_dtype", name, f"has dtype {header.dtype}, not {' or '.join(dtypes)}")
        if rank is not None and len(header.shape) != rank:
            bad("quant_shape", name, f"has shape {list(header.shape)}, not {rank} axes")
        return header

    def sized(self, suffix: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> TensorHeader:
        """Of one of these shapes."""
        header = self.need(suffix, dtypes)
        if header.shape not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            bad("quant_shape", header.name, f"has shape {list(header.shape)}, not {wanted}")
        return header


def bad(code: str, name: str, what: str) -> NoReturn:
    raise BadFileError(f"tensor {quoted(name)} {what}", code=code, param=name)


def refuse(name: str, what: str, code: str = "unsupported") -> NoReturn:
    """Of a field of quantization_config."""
    raise ConfigError(f"quantization_config.{name}: {what}", code=code, param=f"quantization_config.{name}")


def whole(config: Mapping[str, Any], names: tuple[str, ...], among: tuple[int, ...] | None, default: int) -> int:
    """A whole number under the first of these names that is there: one of `among`, or, without it, -1 or a size."""
    name = next((name for name in names if config.get(name) is not None), names[0])
    value = config.get(name, default)
    if type(value) is not int:
        refuse(name, f"{str(value)[:40]!r} is not a whole number", "bad_config")
    if among is not None and value not in among:
        refuse(name, f"{value} is not one of {', '.join(map(str, among))}")
    if among is None and value != -1 and not 1 <= value <= 1 << 20:
        refuse(name, f"{value} is no size of groups", "bad_config")
    return value


def joined_header(parts: Parts, shape: tuple[int, ...], title: str, names: tuple[str, ...]) -> TensorHeader:
    """Of the weight `stem.weight`."""
    nbytes = sum(parts.headers[name].nbytes for name in names)
    return TensorHeader(f"{parts.stem}.weight", shape, title, nbytes)


# ---- scales over groups of columns
def fitting(columns: int, group: int) -> int:
    """The widest group of columns, no wider than `group`, that kernels take and that repeats scales without loss; 0
    where there is none."""
    width = gcd(columns, group)
    return width if width in (16, columns) or width % 32 == 0 else 0


def held_as(kind: Kind, columns: int, group: int) -> Kind:
    return kind if fitting(columns, group) else "bf16"


def held_bytes(kind: Kind, shape: tuple[int, ...], group: int, per_group: int) -> int:
    """Of a weight in groups of `group` columns, with `per_group` bytes of scales each."""
    columns, elements = shape[-1], prod(shape)
    if kind == "bf16":
        return 2 * elements
    data = elements // 2 if kind in ("u4", "fp4") else elements
    return data + elements // columns * (columns // fitting(columns, group)) * per_group


def scales(array: Any, dtype: str) -> Any:
    """As scale codes have them: float16 bits, or float32, which holds bfloat16 without loss."""
    if dtype != "BF16":
        return array
    wide = np.empty(array.shape, np.float32)
    _native.bf16_to_f32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), wide)
    return wide


def grouped(
    kind: Kind, data: Any, columns: int, group: int, scale: Any, *, offset: int = 0, zero: Any = None
) -> Tensor:
    """Some rows. scale, zero: [rows, groups]; the last group may be narrower. Where no group
    fits: with scales for each column, which no kernel takes."""
    shape, width = (len(scale), columns), fitting(columns, group)
    index = np.arange(0, columns, width or 1) // group
    return Tensor(
        kind,
        shape,
        data,
        width or 1,
        offset,
        np.ascontiguousarray(scale[:, index]),
        zero=None if zero is None else np.ascontiguousarray(zero[:, index]),
    )


def by_columns(kind: Kind, data: Any, group_of: Any, scale: Any, *, offset: int = 0, zero: Any = None) -> Tensor:
    """Some rows whose column i has the scales of group group_of[i]."""
    columns = len(group_of)
    zeros = None if zero is None else np.ascontiguousarray(zero[:, group_of])
    each = np.ascontiguousarray(scale[:, group_of])
    return Tensor(kind, (len(scale), columns), data, 1, offset, each, zero=zeros)


# ---- integers in words of 32 bits
def from_words(words: Any, bits: int, count: int, *, plus: int = 0, order: tuple[int, ...] = ()) -> Any:
    """uint8 [streams, count]: the integers of each row of words, a stream of bits from the lowest up, plus `plus`
    (as bytes wrap). order: value j of each word stands in place order[j]; none: in place j."""
    out = np.empty((len(words), count), np.uint8)
    _native.unpack_words(np.ascontiguousarray(words), bits, list(order), plus, out)
    return out


def zeros_from_words(words: Any, bits: int, count: int, *, plus: int = 0, order: tuple[int, ...] = ()) -> Any:
    """The same as int16."""
    out = np.empty((len(words), count), np.int16)
    _native.unpack_words(np.ascontiguousarray(words), bits, list(order), plus, out)
    return out


def nibbles_of(values: Any) -> Any:
    """uint8 [rows, n] of at most 15 each -> [rows, n / 2], as u4 holds them."""
    out = np.empty((len(values), values.shape[1] // 2), np.uint8)
    _native.pack_nibbles(np.ascontiguousarray(values), out)
    return out


def integers(words: Any, bits: int, columns: int) -> tuple[Kind, Any]:
    """(kind, data) of rows of words along the columns: u4, or i8 less 128."""
    if bits == 8:
        return "i8", from_words(words, 8, columns, plus=-128).view(np.int8)
    if bits == 4 and columns % 8 == 0:
        return "u4", np.ascontiguousarray(words).view(np.uint8)
    return "u4", nibbles_of(from_words(words, bits, columns))


def split_zero(zero: Any, middle: int) -> tuple[int, Any]:
    """(offset, zero points or None): one number where all are the symmetric one."""
    return (middle, None) if bool((zero == middle).all()) else (0, zero)


def groups_of(array: Any, columns: int, groups: int, name: str) -> Any:
    """Checked: a group for every column."""
    if array.shape != (columns,) or int(array.min()) < 0 or int(array.max()) >= groups:
        bad("quant_groups", name, f"names groups that are not among {groups}")
    return array
