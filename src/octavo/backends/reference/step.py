"""One step as the reference sees it: the header's fields as tensors, and where each token's cache entry lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from octavo.backends.reference.states import States
from octavo.errors import EngineError
from octavo.program.header import FLAG_NO_WRITE, NUM_SCALARS, VERSION, offsets
from octavo.types import CacheTensor


@dataclass(frozen=True, slots=True)
class Step:
    """T tokens of N requests. fields: header name -> int64 tensor. rows: step rows of each request.

    drafted: some token has a parent, so that its keys are a path and not all that stand before it.
    """

    fields: Mapping[str, torch.Tensor]
    rows: tuple[slice, ...]
    drafted: bool

    @classmethod
    def parse(cls, given: Any) -> Step:
        header = np.asarray(given)
        version, *counts = (int(word) for word in header[:NUM_SCALARS])
        where = offsets(*counts)
        if version != VERSION or header.shape != (where["tables"][1],):
            raise EngineError(f"step header of {header.shape} words, version {version}, does not fit its own counts")
        whole = torch.from_numpy(header.astype(np.int64))
        fields = {name: whole[begin:end] for name, (begin, end) in where.items()}
        begins = fields["row_begin"].tolist()
        return cls(fields, tuple(map(slice, begins[:-1], begins[1:])), bool((fields["parent"] >= 0).any()))

    def written(self) -> torch.Tensor:
        """Step rows whose keys and values go into the cache."""
        return torch.nonzero((self.fields["flags"] & FLAG_NO_WRITE) == 0).flatten()

    def path(self, row: int) -> list[int]:
        """Storage indices that a tree draft attends to: up to the last known token, then its own path by depth."""
        index, parent = self.fields["index"].tolist(), self.fields["parent"].tolist()
        ancestors = []
        while parent[row] >= 0:
            ancestors.append(index[row])
            row = parent[row]
        return [*range(index[row] + 1), *reversed(ancestors)]


class Pages:
    """The caches of one session: blocks of every cache tensor, and per group the block table of each slot.

    memory: uint8 [num_blocks, bytes], each tensor's entries of a block side by side. states: of groups without blocks.
    """

    def __init__(
        self, tensors: Mapping[str, CacheTensor], groups: Mapping[str, int], shape: PageShape, states: States
    ) -> None:
        """groups: cache tensor -> group number."""
        self.states = states
        self.tensors = dict(tensors)
        self.groups = dict(groups)
        self.shape = shape
        num_groups = max(groups.values(), default=-1) + 1
        self.tables = torch.zeros((num_groups, shape.max_seqs, shape.max_blocks), dtype=torch.int64)
        # numpy's zeros are pages that the system gives when they are touched; torch's are written at once.
        self.memory = torch.from_numpy(np.zeros((shape.num_blocks, block_bytes(tensors, shape.block_tokens)), np.uint8))
        self.entries: dict[str, torch.Tensor] = {}  # uint8 [num_blocks, block_tokens, bytes of one token]
        begin = 0
        for name, tensor in tensors.items():
            used = self.memory[:, begin : begin + shape.block_tokens * tensor.bytes]
            self.entries[name] = used.view(shape.num_blocks, shape.block_tokens, tensor.bytes)
            begin += padded_bytes(tensor, shape.block_tokens)

    def update(self, words: list[int]) -> None:
        """Repeated (slot, group, first, count, block * count)."""
        at = 0
        while at < len(words):
            slot, group, first, count = words[at : at + 4]
            blocks = torch.tensor(words[at + 4 : at + 4 + count], dtype=torch.int64)
            self.tables[group, slot, first : first + count] = blocks
            at += 4 + count

    def copy(self, triples: list[int]) -> None:
        """Repeated (slot, source index, target index), all read before any is written."""
        if not triples:
            return
        slot, source, target = torch.tensor(triples, dtype=torch.int64).reshape(-1, 3).T
        for name, entries in self.entries.items():
            entries[self.place(name, slot, target)] = entries[self.place(name, slot, source)]

    def write(self, name: str, place: Place, values: torch.Tensor) -> None:
        """values: float32 [n, elements]. i8: x / scale to nearest even, scale = max|x| / 127 a token and head."""
        tensor = self.tensors[name]
        if tensor.dtype != "i8":
            stored = values.to(STORED[tensor.dtype])
            self.entries[name][place] = stored.view(torch.uint8)
            return
        heads = values.reshape(len(values), tensor.scales, -1)
        scale = heads.abs().amax(-1, keepdim=True).clamp(min=LEAST) / 127
        codes = (heads / scale).round().to(torch.int8).flatten(1)
        self.entries[name][place] = torch.cat((codes.view(torch.uint8), scale.flatten(1).view(torch.uint8)), dim=1)

    def read(self, name: str, place: Place) -> torch.Tensor:
        """float32 [n, elements]."""
        tensor, entries = self.tensors[name], self.entries[name][place]
        if tensor.dtype != "i8":
            return entries.view(STORED[tensor.dtype]).float()
        codes, scale = entries[:, : tensor.elements], entries[:, tensor.elements :].contiguous().view(torch.float32)
        heads = codes.contiguous().view(torch.int8).float().reshape(len(entries), tensor.scales, -1)
        return (heads * scale[..., None]).flatten(1)

    def place(self, name: str, slot: torch.Tensor, index: torch.Tensor) -> Place:
        """(block, offset in it) of each token in a cache tensor's group: the subscript of its entries."""
        size = self.shape.block_tokens
        return self.tables[self.groups[name], slot, index // size], index % size


@dataclass(frozen=True, slots=True)
class PageShape:
    num_blocks: int
    block_tokens: int
    max_seqs: int
    max_blocks: int


STORED = {"f32": torch.float32, "bf16": torch.bfloat16}
LEAST = 2.0**-100  # of max|x|: what is smaller is stored as 0
ALIGN = 64
Place = tuple[torch.Tensor, torch.Tensor]  # blocks, offsets in them


def padded_bytes(tensor: CacheTensor, block_tokens: int) -> int:
    """Bytes of one cache tensor in one block."""
    return -(-tensor.bytes * block_tokens // ALIGN) * ALIGN


def block_bytes(tensors: Mapping[str, CacheTensor], block_tokens: int) -> int:
    return sum(padded_bytes(tensor, block_tokens) for tensor in tensors.values())
