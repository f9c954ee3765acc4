"""Snapshots: recurrent state that outlives its request, and what a row must do to the state of its slot.

A request's own state stands in its slot, is of constant size and belongs to no ledger. Drafts never enter it: they
leave what they would add in the slot's tail, and the next row first replays the accepted ones. A snapshot is the state
after a whole number of blocks, under the key of the last of them; a prefix hit can end nowhere else.

    token   0 ....... hit ................ firm ...... drafts
            restored from a snapshot       the slot    its tail: replayed as far as accepted
                      |    |          |
                      fork, last full block of the prompt, every n tokens: copied out while the row is computed
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.policy.blocks import BlockPool
from octavo.request import StateStep


class Standing:
    """One admitted request. firm: tokens that its slot's state holds once all its plans have run. restore: the snapshot
    that its first row starts from, held until that row is committed; restored: a plan has it. points: block counts at
    which admission wants snapshots. claimed: all such with known tokens, with their keys. pending: those that a plan
    writes, and the numbers of their snapshots."""

    __slots__ = ("claimed", "firm", "pending", "points", "restore", "restored")

    def __init__(self, firm: int, restore: int, points: set[int], claimed: dict[int, bytes]) -> None:
        self.firm = firm
        self.restore = restore
        self.restored = False
        self.points = points
        self.claimed = claimed
        self.pending: dict[int, int] = {}


class Snapshots:
    """`num_snapshots`: how many the machine has room for, numbered from 1. every: blocks from one to the next, 0 for
    none besides those at the end of prompts and at forks. Blocks are counted: a snapshot at n holds n whole blocks."""

    def __init__(self, num_snapshots: int, every: int, block_tokens: int) -> None:
        self.pool = BlockPool(num_snapshots + 1)
        self.every = every
        self.block_tokens = block_tokens
        self.standings: dict[str, Standing] = {}
        self.computing: dict[bytes, int] = {}

    def longest(self, keys: Sequence[bytes], length: int) -> int:
        """The most blocks, at most `length`, after which there is a snapshot."""
        return next((n for n in range(length, 0, -1) if keys[n - 1] in self.pool), 0)

    def awaited(self, keys: Sequence[bytes]) -> bool:
        """Whether a running request is on its way to a snapshot under one of these keys."""
        return bool(self.computing) and any(key in self.computing for key in keys)

    def open(self, name: str, keys: Sequence[bytes], hit: int, start: int, points: set[int]) -> None:
        """The request goes on at token `start` from the snapshot at `hit`, if it is one. points: blocks after which a
        snapshot is wanted, besides the regular ones."""
        restore = 0
        if hit:
            restore = self.pool.find(keys[hit - 1]) or 0
            self.pool.share(restore)
        wanted = {n for n in points if n > hit}
        claimed = {n: keys[n - 1] for n in range(hit + 1, len(keys) + 1) if n in wanted or self._regular(n)}
        for key in claimed.values():
            self.computing[key] = self.computing.get(key, 0) + 1
        self.standings[name] = Standing(start, restore, wanted, claimed)

    def _regular(self, blocks: int) -> bool:
        return self.every > 0 and blocks % self.every == 0

    def advance(self, name: str, start: int, known: int, *, keep: bool) -> StateStep:
        """What the row over tokens [start, start + known) and its drafts does to the state. keep: snapshots are taken,
        as long as there is one that nobody writes or is about to read."""
        standing, size = self.standings[name], self.block_tokens
        before, restore = standing.firm, 0 if standing.restored else standing.restore
        standing.firm, standing.restored = start + known, True
        taken: list[tuple[int, int]] = []
        for n in range(before // size + 1, standing.firm // size + 1):
            if keep and (n in standing.points or self._regular(n)) and self.pool.available:
                standing.pending[n] = self.pool.take()
                taken.append((n * size - before, standing.pending[n]))
        return StateStep(start - before, restore, tuple(taken))

    def publish(self, name: str, keys: Sequence[bytes], full: int, *, sound: bool) -> None:
        """`full` blocks are computed for good: snapshots so far can be found. Not those that are suspect, nor twins."""
        standing = self.standings[name]
        if standing.restore:
            self.pool.drop(standing.restore)
            standing.restore = 0
        for n in [n for n in standing.pending if n <= full]:
            snapshot, key = standing.pending.pop(n), keys[n - 1]
            if sound and key not in self.pool:
                self.pool.publish(snapshot, key, key)
            self.pool.drop(snapshot)
        for n in [n for n in standing.claimed if n <= full]:
            self._unclaim(standing.claimed.pop(n))

    def _unclaim(self, key: bytes) -> None:
        left = self.computing[key] - 1
        if left:
            self.computing[key] = left
        else:
            del self.computing[key]

    def release(self, name: str) -> None:
        """The request leaves its slot; what it was about to keep is dropped."""
        standing = self.standings.pop(name)
        for snapshot in (standing.restore, *standing.pending.values()):
            if snapshot:
                self.pool.drop(snapshot)
        for key in standing.claimed.values():
            self._unclaim(key)
