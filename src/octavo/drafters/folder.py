"""A head's folder: config.json and safetensors, one file or shards, joined with the weights of a drafter's programs.

A draft head is trained for one target: what does not fit it is refused with the numbers of both. Pickles are never
opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from octavo.drafters.port import Elsewhere
from octavo.drafters.target import Target
from octavo.errors import BadFileError, ConfigError, MissingFileError, PolicyError, in_file
from octavo.fields import Fields
from octavo.program.builder import Builder
from octavo.program.ir import Program, Weight
from octavo.weights.checkpoint import UNSAFE_SUFFIXES
from octavo.weights.match import match

SHIFTS = "d2t"  # of a reduced vocabulary: what to add to a token of the head's own for that of the target
VOCABULARY = (SHIFTS, "t2d")  # and which of the target's tokens it has


class HeadFolder:
    """Open while the engine loads: weights are read when it asks for them."""

    def __init__(self, path: Path, target: Target) -> None:
        """Raises MissingFileError, PolicyError, BadFileError, ConfigError."""
        _refuse_pickles(path)
        self.path = path
        self.checkpoint = target.beside(str(path))
        if self.checkpoint.format != "hf":
            raise ConfigError(f"{path}: a draft head is config.json and safetensors, not a GGUF file")
        self.fields = Fields(self.checkpoint.config)
        self._names: dict[str, str] = {}

    @property
    def architecture(self) -> str:
        """The first that config.json names; empty when it names none."""
        names = self.fields.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def count(self, name: str, default: int | None, most: int) -> int:
        """A field of config.json, from 1 to `most`. Raises ConfigError."""
        with in_file(self.path):
            count = self.fields.size(name, default)
            if count > most:
                raise ConfigError(f"{name} {count}: at most {most}", param=name)
        return count

    def has(self, name: str) -> bool:
        return name in self.checkpoint.headers

    def shape(self, *names: str) -> tuple[int, ...]:
        """Of the one of these tensors that is there. Raises BadFileError when none is."""
        header = next((self.checkpoint.headers[name] for name in names if self.has(name)), None)
        if header is None:
            raise BadFileError(f"{self.path}: lacks {names[0]}", code="missing_tensors", param=names[0])
        return header.shape

    def fits(self, what: str, stated: int, needed: int) -> None:
        """Raises ConfigError with the numbers of both."""
        if stated != needed:
            raise ConfigError(f"{self.path}: a head for {what} of {stated}; the target's is {needed}", param="head")

    def weight(self, b: Builder, name: str, shape: tuple[int, ...], *sources: str) -> str:
        """Declares a weight of the head's own, under the names that files give it."""
        first, *others = sources
        return b.weight(name, shape, hf=first, gguf=first, others=tuple(others))

    def block(self, b: Builder, name: str, out: str, x: str, width: int, *keys: str) -> str:
        """[*, width]: x + SiLU(W x + b). name: of the weights, whose tensors are KEY.weight and KEY.bias of one of the
        keys. out: beginning of the names of values."""
        w = self.weight(b, f"{name}.w", (width, width), *(f"{key}.weight" for key in keys))
        bias = self.weight(b, f"{name}.b", (width,), *(f"{key}.bias" for key in keys))
        return b.add(f"{out}.x", x, b.act(f"{out}.a", b.linear(f"{out}.l", x, w, bias), act="silu"))

    def join(self, programs: Iterable[Program], shared: Mapping[str, Weight], spare: tuple[str, ...] = ()) -> None:
        """Finds every weight of the programs but those of the target. spare: beginnings of names of other tensors
        that may be here. Raises BadFileError, ConfigError for what is missing, left over or of another shape."""
        own = {name: weight for program in programs for name, weight in program.weights.items() if name not in shared}
        self._names = match(own, self.checkpoint, (*spare, *VOCABULARY))

    def tensor(self, weight: Weight) -> Elsewhere | None:
        name = self._names.get(weight.name)
        return None if name is None else Elsewhere(self.checkpoint, name)

    def target_ids(self, width: int, vocab: int) -> tuple[int, ...]:
        """The target's token of each of the head's `width`: all of them where the head has no vocabulary of its own."""
        if not self.has(SHIFTS):
            self.fits("a vocabulary", width, vocab)
            return tuple(range(vocab))
        header = self.checkpoint.headers[SHIFTS]
        if header.dtype != "I64" or header.shape != (width,):
            what = f"{SHIFTS} is {header.dtype} {list(header.shape)}, not I64 [{width}]"
            raise BadFileError(f"{self.path}: {what}", param=SHIFTS)
        shifts = np.frombuffer(self.checkpoint.raw(SHIFTS).tobytes(), np.int64).tolist()
        ids = tuple(token + shift for token, shift in enumerate(shifts))
        if not all(0 <= token < vocab for token in ids):
            wrong = next(token for token in ids if not 0 <= token < vocab)
            raise ConfigError(f"{self.path}: {SHIFTS} leads to token {wrong}; the target has {vocab}", param=SHIFTS)
        return ids


def _refuse_pickles(path: Path) -> None:
    """Raises PolicyError that says how to convert one, MissingFileError where nothing is."""
    if not path.exists():
        raise MissingFileError(f"{path}: no such draft head")
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else [path.name]
    pickles = [name for name in names if name.endswith(UNSAFE_SUFFIXES)]
    if pickles and not any(name.endswith(".safetensors") for name in names):
        how = "where it is trusted, load it with torch and write model.safetensors with safetensors.torch.save_file"
        raise PolicyError(f"{path}: {pickles[0]} is a pickle, which can run code; {how}", code="unsafe_format")
