"""BlockPool: the blocks of one KV group, by number. Owns reference counts, the key -> block index and eviction order.

    free  --take-->  held (refs > 0)  --drop-->  idle (refs 0, keyed: least recently dropped is evicted first)
      ^                  ^                         |  |
      |                  '---------share-----------'  |
      '--drop without a key; take evicts; forget------'

Block 0 is the null block: it is never taken, held, keyed or freed. What is inside a block is the machine's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet


class BlockPool:
    """`num_blocks` counts the null block."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs the null block and one more, not {num_blocks}")
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.keys: list[bytes | None] = [None] * num_blocks
        self.parents: list[bytes | None] = [None] * num_blocks
        self.free = list(range(num_blocks - 1, 0, -1))
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.evictions = 0
        self._by_key: dict[bytes, list[int]] = {}

    @property
    def usable(self) -> int:
        return self.num_blocks - 1

    @property
    def available(self) -> int:
        """Blocks that `take` can give now."""
        return len(self.free) + len(self.idle)

    def take(self) -> int:
        """A block for writing, with one reference; the oldest idle one is evicted when none is free."""
        if self.free:
            block = self.free.pop()
        else:
            block, _ = self.idle.popitem(last=False)
            self._unkey(block)
            self.evictions += 1
        self.refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reference to a keyed block, held or idle."""
        if not self.refs[block]:
            del self.idle[block]
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        """One reference less. The last one leaves a keyed block idle and any other free."""
        refs = self.refs[block] = self.refs[block] - 1
        if refs:
            return
        if self.keys[block] is None:
            self.free.append(block)
        else:
            self.idle[block] = None

    def publish(self, block: int, key: bytes, parent: bytes) -> None:
        """From now on the held, full block can be found under `key`. Several blocks may have one key: a twin keeps the
        chain of its own children reachable when the other is evicted."""
        self.keys[block] = key
        self.parents[block] = parent
        self._by_key.setdefault(key, []).append(block)

    def find(self, key: bytes) -> int | None:
        blocks = self._by_key.get(key)
        return blocks[-1] if blocks else None

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def forget(self, keys: AbstractSet[bytes]) -> set[bytes]:
        """Takes these keys and every key below them out of the index; idle blocks become free. Returns what went.

        O(num_blocks): for faults only."""
        below: dict[bytes, list[bytes]] = {}
        for key, parent in zip(self.keys, self.parents, strict=True):
            if key is not None and parent is not None:
                below.setdefault(parent, []).append(key)
        doomed, frontier = set(keys), list(keys)
        while frontier:
            for key in below.get(frontier.pop(), ()):
                if key not in doomed:
                    doomed.add(key)
                    frontier.append(key)
        for key in doomed:
            for block in list(self._by_key.get(key, ())):
                self._forget(block)
        return doomed

    def clear(self) -> None:
        """No block can be found any more."""
        for block, key in enumerate(self.keys):
            if key is not None:
                self._forget(block)

    def _forget(self, block: int) -> None:
        self._unkey(block)
        if block in self.idle:
            del self.idle[block]
            self.free.append(block)

    def _unkey(self, block: int) -> None:
        key = self.keys[block]
        assert key is not None
        blocks = self._by_key[key]
        blocks.remove(block)
        if not blocks:
            del self._by_key[key]
        self.keys[block] = self.parents[block] = None
