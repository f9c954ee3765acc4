"""A checkpoint on disk, opened: what it holds (headers, configuration, tokenizer) and its tensors, one at a time.

Opening reads no tensor data. Which kinds tensors are held as is decided here, by shape and format alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from typing import Any, Literal, Protocol

from octavo.errors import BadFileError, MissingFileError, PolicyError, in_file
from octavo.program.ir import Scalar, Weight
from octavo.types import digest
from octavo.weights.catalogue import MappedFile, TensorHeader, quoted
from octavo.weights.gguf import parse_gguf
from octavo.weights.kinds import Tensor, dequantize
from octavo.weights.methods import Joined, join, method_of
from octavo.weights.prepare import prepared_shape
from octavo.weights.safetensors import SafetensorsFolder
from octavo.weights.schemes import SCHEMES, Scheme
from octavo.weights.stack import EXPERT, Place, Stack, find_stack
from octavo.weights.stored import Assembled, Part, Stored

# A GGUF tensor that holds factors of the rotary frequencies, not a weight.
ROPE_FACTORS = "rope_freqs.weight"
UNSAFE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Source(Protocol):
    """Where tensors come from: one GGUF file, or a folder of safetensors."""

    format: Literal["gguf", "hf"]
    config: Mapping[str, Any]
    headers: dict[str, TensorHeader]
    tokenizer: Mapping[str, Any]

    def place(self, name: str) -> tuple[MappedFile, int]:
        """The file that holds a tensor, and its first byte there."""

    def fingerprint(self) -> bytes:
        """Changes when headers, sizes or modification times change."""

    def close(self) -> None: ...


class GGUFFile:
    """One GGUF file as a source. Its metadata is both configuration and tokenizer."""

    format: Literal["gguf", "hf"] = "gguf"

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        header = parse_gguf(self._file.bytes, str(path))
        self.config: Mapping[str, Any] = header.metadata
        self.tokenizer: Mapping[str, Any] = header.metadata
        self.headers = header.headers
        self._offsets = header.offsets
        self._data_start = header.data_start

    def place(self, name: str) -> tuple[MappedFile, int]:
        return self._file, self._offsets[name]

    def fingerprint(self) -> bytes:
        header = self._file.bytes[: self._data_start].tobytes()
        return digest("gguf", header, self._file.size, self._file.mtime_ns)

    def close(self) -> None:
        self._file.close()


class Checkpoint:
    """format: "gguf" (config is the metadata) or "hf" (config is config.json).

    tokenizer: the GGUF metadata, or file name -> path for those of tokenizer.json, tokenizer_config.json,
    generation_config.json and chat_template.jinja that the folder has.
    notes: one line each for what loading does to the weights (rounding), to be said once.
    """

    def __init__(self, path: Path, source: Source, matrices: Literal["bf16", "f32"]) -> None:
        self.path = path
        self.format = source.format
        self.config = source.config
        self.tokenizer = source.tokenizer
        self._source = source
        self._matrices = matrices
        self._joined: dict[str, Joined] = {}
        self._said: tuple[str, ...] = ()
        self.headers = source.headers if source.format == "gguf" else self._join(path, source)
        self.notes = self.rounding()
        self.content_id = source.fingerprint().hex()

    def find(self, name: str) -> Place | None:
        """The tensors of a weight's source: one of that name, or a stack of them (stack.py). None: not here."""
        header = self.headers.get(name)
        if header is not None:
            return Place((name,), header)
        return find_stack(self.headers, name) if EXPERT in name else None

    def _join(self, path: Path, source: Source) -> dict[str, TensorHeader]:
        """Headers of weights: one for those that several tensors make."""
        with in_file(path / "config.json"):
            method = method_of(source.config)
        with in_file(path):
            plain, self._joined = join(method, source.headers, lambda name: self._part(name).array)
        self._said = method.notes if method is not None else ()
        return plain | {name: weight.header for name, weight in self._joined.items()}

    def _part(self, name: str) -> Part:
        return Part(*self._source.place(name), self._source.headers[name])

    def kind_of(self, name: str) -> str:
        """f32 for vectors; matrices as their scheme says (float ones bf16, or f32 where asked for at opening)."""
        joined = self._joined_of(name)
        if joined is not None:
            return self._kind_of_joined(joined)
        header, scheme = self._header(name)
        if len(header.shape) < 2 or (scheme.kind == "bf16" and self._matrices == "f32"):
            return "f32"
        return scheme.kind

    def kind_for(self, weight: Weight, name: str) -> str:
        """What a weight is held as whose source is this tensor."""
        kind = "f32" if weight.plain else self.kind_of(name)
        if weight.floats and kind not in ("f32", "bf16"):
            return self._matrices
        return kind

    def stored_bytes(self, name: str, kind: str = "", prep: tuple[tuple[Scalar, ...], ...] = ()) -> int:
        """Bytes that the tensor will take in memory once prepared, as `kind` where it is not what the scheme says."""
        joined, kind = self._joined_of(name), kind or self.kind_of(name)
        shape = prepared_shape(self._place(name).header.shape, prep)
        if joined is not None:
            each = {"f32": 4, "bf16": 2}.get(kind, 0)
            return each * prod(shape) or joined.kind_bytes * prod(shape) // prod(joined.header.shape)
        _, scheme = self._header(name)
        return scheme.bytes_as(kind, shape)

    def file_bytes(self, name: str) -> int:
        return self._place(name).header.nbytes

    def stored(
        self, name: str, prep: tuple[tuple[Scalar, ...], ...] = (), *, kind: str = ""
    ) -> Stored | Assembled | Stack:
        """kind: f32 or bf16, where it is not what the scheme says."""
        place, kind = self._place(name), kind or self.kind_of(name)
        if len(place.names) > 1 or (EXPERT in name and not len(self.headers[place.names[0]].shape) > 2):
            return Stack(tuple(self._one(part, prep, kind) for part in place.names))
        return self._one(place.names[0], (*place.prep, *prep), kind)

    def _one(self, name: str, prep: tuple[tuple[Scalar, ...], ...], kind: str) -> Stored | Assembled:
        """What stands under one name of `headers`."""
        joined = self._joined.get(name)
        if joined is not None:
            return Assembled(joined, tuple(map(self._part, joined.parts)), kind, prep)
        header, scheme = self._header(name)
        return Stored(*self._source.place(name), header, scheme, kind, prep)

    def read(self, name: str) -> Tensor:
        return self.stored(name).read()

    def raw(self, name: str) -> Any:
        """The bytes of one tensor of the file, flat uint8; nothing is copied."""
        file, start = self._source.place(name)
        return file.bytes[start : start + self._source.headers[name].nbytes]

    def rope_factors(self) -> tuple[float, ...]:
        """Divisors of the rotary frequencies, one per pair, where a GGUF file brings them as a tensor; else none."""
        if ROPE_FACTORS not in self.headers or self.format != "gguf":
            return ()
        return tuple(dequantize(self.read(ROPE_FACTORS)).tolist())

    def close(self) -> None:
        self._source.close()

    def _place(self, name: str) -> Place:
        place = self.find(name)
        if place is None:
            raise BadFileError(f"{self.path}: no tensor {quoted(name)}", code="missing_tensor", param=name)
        return place

    def _header(self, name: str) -> tuple[TensorHeader, Scheme]:
        header = self._place(name).header
        scheme = SCHEMES.get(header.dtype)
        if scheme is None:
            raise BadFileError(
                f"{self.path}: tensor {quoted(name)} has {header.dtype}, which is not supported", param=name
            )
        return header, scheme

    def _joined_of(self, name: str) -> Joined | None:
        return self._joined.get(self._place(name).names[0])

    def _kind_of_joined(self, joined: Joined) -> str:
        return "f32" if joined.kind == "bf16" and self._matrices == "f32" else joined.kind

    def rounding(self, exact: Collection[str] = ()) -> list[str]:
        """The notes, where the tensors named `exact` keep every bit."""
        said = {joined.note for joined in self._joined.values() if joined.note}
        held = [header for header in self.headers.values() if len(header.shape) > 1 and header.name not in exact]
        wide = {header.dtype for header in held} & {"F16", "F32"}
        if self._matrices == "f32":
            return list(self._said)
        said |= {f"{dtype} matrices are held as bf16, rounded to nearest even" for dtype in wide}
        return [*self._said, *sorted(said)]


def open_checkpoint(path: Path, *, matrices: Literal["bf16", "f32"] = "bf16") -> Checkpoint:
    """`path`: a GGUF file, or a folder with config.json and safetensors (or a single GGUF file).

    matrices: what F32, F16 and BF16 matrices are held as; "f32" is exact and for the reference executor.
    """
    path = Path(path)
    if path.is_dir():
        return Checkpoint(path, _open_folder(path), matrices)
    if path.suffix in UNSAFE_SUFFIXES:
        raise PolicyError(f"{path}: pickled weights can run code; convert to safetensors", code="unsafe_format")
    if path.suffix == ".safetensors":
        raise BadFileError(f"{path}: name the folder that holds it and its config.json", code="st_no_config")
    return Checkpoint(path, GGUFFile(path), matrices)


def _open_folder(path: Path) -> Source:
    names = sorted(entry.name for entry in path.iterdir())
    if any(name.endswith(".safetensors") for name in names):
        return SafetensorsFolder(path)
    gguf = [name for name in names if name.endswith(".gguf")]
    if len(gguf) == 1:
        return GGUFFile(path / gguf[0])
    if gguf:
        raise MissingFileError(f"{path}: several GGUF files, name one: {', '.join(gguf)}", code="several_files")
    if "model.safetensors.index.json" in names:
        return SafetensorsFolder(path)
    unsafe = [name for name in names if name.endswith(UNSAFE_SUFFIXES)]
    if unsafe:
        what = "pickled weights can run code; convert to safetensors"
        raise PolicyError(f"{path}: only {unsafe[0]} is here, and {what}", code="unsafe_format")
    raise MissingFileError(f"{path}: holds neither a GGUF file nor safetensors")
