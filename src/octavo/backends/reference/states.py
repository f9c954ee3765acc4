"""Recurrent state of the reference: what stands in slots, snapshots and tails, and what a step does to it before any
operator runs. Operators read and write it by the name of their state tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from octavo.errors import EngineError
from octavo.types import KVGroup


@dataclass(frozen=True, slots=True)
class Walk:
    """One request of the step: its slot, the accepted drafts of the tail, its rows, (tokens, snapshot) to keep."""

    slot: int
    replay: int
    firm: slice
    drafts: range
    snapshots: tuple[tuple[int, int], ...]


class States:
    """Per state tensor: slots [max_seqs, elements], snapshots [num_snapshots + 1, elements] from 1 on, tails
    [max_seqs, drafts, elements of one]. base: per slot, the index of its tail's first token."""

    def __init__(self, groups: Iterable[KVGroup], max_seqs: int, num_snapshots: int) -> None:
        held = [(tensor, group.tail) for group in groups if group.rule == "state" for tensor in group.tensors]
        self.slots = {tensor.name: torch.zeros(max_seqs, tensor.elements) for tensor, _ in held}
        self.snapshots = {tensor.name: torch.zeros(num_snapshots + 1, tensor.elements) for tensor, _ in held}
        self.tails = {tensor.name: torch.zeros(max_seqs, drafts, tensor.tail) for tensor, drafts in held}
        self.drafts = max((drafts for _, drafts in held), default=0)
        self.num_snapshots = num_snapshots
        self.base = [0] * max_seqs
        self.walks: tuple[Walk, ...] = ()

    def begin(self, header: Mapping[str, torch.Tensor], rows: Sequence[slice]) -> None:
        """Moves accepted drafts, starts slots from snapshots or from nothing. rows: of each request. Raises EngineError
        for a header that asks for what is not there."""
        fields = {name: values.tolist() for name, values in header.items() if name != "tables"}
        for at in range(0, len(fields["copies"]), 3):
            slot, source, target = fields["copies"][at : at + 3]
            for tail in self.tails.values():
                tail[slot, target - self.base[slot]] = tail[slot, source - self.base[slot]]
        self.walks = tuple(self._walks(rows, fields))
        for walk, restore, context in zip(self.walks, fields["restore"], fields["context"], strict=True):
            for name, slots in self.slots.items():
                if restore:
                    slots[walk.slot] = self.snapshots[name][restore]
                elif context == 0:
                    slots[walk.slot] = 0
            self.base[walk.slot] = context + walk.firm.stop - walk.firm.start

    def _walks(self, rows: Sequence[slice], fields: dict[str, list[int]]) -> Iterator[Walk]:
        taken = fields["snapshots"]
        for n, mine in enumerate(rows):
            slot, replay, firm = fields["slot"][n], fields["replay"][n], fields["firm"][n]
            drafts = range(mine.start + firm, mine.stop)
            kept = tuple((taken[at + 1], taken[at + 2]) for at in range(0, len(taken), 3) if taken[at] == n)
            if len(drafts) > self.drafts or (replay and self.base[slot] != fields["context"][n] - replay):
                raise EngineError(f"step header: the tail of slot {slot} does not hold what the step asks for")
            if any(number > self.num_snapshots for number in (fields["restore"][n], *(to for _, to in kept))):
                raise EngineError("step header: it names a snapshot that does not exist")
            yield Walk(slot, replay, slice(mine.start, drafts.start), drafts, kept)
