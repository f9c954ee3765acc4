"""The weights of several programs as one stream, each once, wherever it stands: in the target's checkpoint, in one that
a drafter brings, or in the drafter's hands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.backends.port import WeightStream
from octavo.drafters.port import Drafter, Elsewhere
from octavo.program.ir import Program
from octavo.types import digest
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.kinds import Tensor
from octavo.weights.match import match, set_aside
from octavo.weights.stored import OnDisk, read_ahead

Progress = Callable[[int, int], None]  # bytes of weights read, of all


class WeightSource:
    """In the programs' order; what the target declares stands first and is the target's."""

    def __init__(self, target: str, programs: Mapping[str, Program], checkpoint: Checkpoint, drafter: Drafter) -> None:
        self._weights = {name: weight for program in programs.values() for name, weight in program.weights.items()}
        self._own: dict[str, Tensor] = {}
        self._places: dict[str, Elsewhere] = {}
        for name, weight in self._weights.items():
            given = None if name in programs[target].weights else drafter.tensor(weight)
            if isinstance(given, Tensor):
                self._own[name] = given
            elif given is not None:
                self._places[name] = given
        brought = self._own.keys() | self._places.keys()
        rest = {name: weight for name, weight in self._weights.items() if name not in brought}
        spare = [prefix for program in programs.values() for prefix in program.spare]
        found = match(rest, checkpoint, spare)
        self._places |= {name: Elsewhere(checkpoint, source) for name, source in found.items()}
        used = {name for source in found.values() if (at := checkpoint.find(source)) is not None for name in at.names}
        aside = [name for name in set_aside(checkpoint, spare) if name not in used]
        self.notes = checkpoint.rounding({source for name, source in found.items() if self._weights[name].plain})
        if aside:
            self.notes.append(f"{len(aside)} tensors of draft layers are not used: {aside[0]} and its like")
        sizes = {
            name: place.checkpoint.stored_bytes(place.name, self._kind(name), self._weights[name].prep)
            for name, place in self._places.items()
        }
        self._sizes = sizes | {name: tensor.nbytes for name, tensor in self._own.items()}
        self.stored_bytes = sum(self._sizes.values())

    def kinds(self, program: Program) -> dict[str, str]:
        return {name: self._own[name].kind if name in self._own else self._kind(name) for name in program.weights}

    def content(self) -> bytes:
        """Names every weight: its checkpoint, tensor, kind and preparation, or the bytes that the drafter gave."""
        fields: list[bytes | str | int] = []
        for name, weight in self._weights.items():
            own = self._own.get(name)
            if own is None:
                place = self._places[name]
                fields += [name, place.checkpoint.content_id, place.name, self._kind(name), repr(weight.prep)]
                continue
            parts = [b"" if array is None else array.tobytes() for array in own.arrays]
            fields += [name, own.kind, own.group, own.offset, *parts]
        return digest(*fields)

    def stream(self, progress: Progress) -> WeightStream:
        done = 0
        for name, weight in read_ahead((name, self._one(name)) for name in self._weights):
            yield name, weight
            done += self._sizes[name]
            progress(done, self.stored_bytes)

    def _kind(self, name: str) -> str:
        place = self._places[name]
        return place.checkpoint.kind_for(self._weights[name], place.name)

    def _one(self, name: str) -> Tensor | OnDisk:
        own = self._own.get(name)
        if own is not None:
            return own
        place = self._places[name]
        return place.checkpoint.stored(place.name, self._weights[name].prep, kind=self._kind(name))
