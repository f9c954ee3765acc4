"""KVLedger: who holds which blocks of which group, and which prefixes can be found again. It alone owns blocks.

A request holds one block table per group; all groups agree on what is cached, reserved and released. Keys are a
SHA-256 chain: the root tags everything that changes the bytes of a cache (numerics, model, adapter generation, salt);
every full block adds its tokens. Recurrent state has no blocks: state.py keeps its snapshots. n tokens known, B tokens
a block, W a window:

    token      0 ........ hit ............ computed ............ n
    full       | shared     | own, published   | reserved          |
    window(W)  | null ...... computed - W | held                   |    wholly behind the window: dropped, entry 0
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from octavo.errors import UnsupportedError
from octavo.policy.blocks import BlockPool
from octavo.policy.state import Snapshots
from octavo.request import Request, StateStep, TableUpdate
from octavo.types import KVGroup, digest

NULL = 0


class GroupTable:
    """One request's block table in one group. sent: entries the machine knows; nulls: leading entries already null;
    nulls_sent: of them, those the machine knows."""

    __slots__ = ("blocks", "nulls", "nulls_sent", "sent")

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = blocks
        self.nulls = blocks.count(NULL)
        self.nulls_sent = self.sent = 0


class Holding:
    """What one admitted request holds. published: full blocks that are under their key; claimed: full blocks of known
    tokens that it computes or has computed; tainted: it shares a block that was found bad and publishes nothing.
    room: tokens that its tables have place for; ahead: tokens that are looked ahead for it; due: computed tokens at
    which publishing has something to do; told: the machine knows the tables."""

    __slots__ = ("ahead", "claimed", "due", "published", "room", "tables", "tainted", "told")

    def __init__(self, tables: list[GroupTable], published: int, claimed: int, ahead: int) -> None:
        self.ahead = ahead
        self.tables = tables
        self.published = published
        self.claimed = claimed
        self.tainted = self.told = False
        self.room = self.due = 0


class KeyChain:
    """The keys of one request's full blocks, extended as tokens become known."""

    __slots__ = ("keys", "root")

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.keys: list[bytes] = []

    def parent(self, block: int) -> bytes:
        return self.keys[block - 1] if block else self.root

    def extend(self, request: Request, blocks: int, block_tokens: int) -> None:
        """Parent (32 bytes) and tokens (8 bytes each, a fixed number) have fixed sizes: no two inputs read alike."""
        for block in range(len(self.keys), blocks):
            tokens = array("q", request.tokens(block * block_tokens, (block + 1) * block_tokens))
            self.keys.append(hashlib.sha256(self.parent(block) + tokens.tobytes()).digest())


class KVLedger:
    """`num_blocks`: per pool, the null block counted; one number serves every group. groups: those with blocks;
    updates speak of their numbers among all. hit_backoff: tokens before the last that a hit never covers, because a
    drafter wants their rows. lookahead: tokens behind the end of a row that samples for which there is room too: a
    drafter writes its own caches there (`need`). states: None without a state group; num_snapshots, snapshot_every
    (tokens) are for it."""

    def __init__(
        self,
        groups: Sequence[KVGroup],
        num_blocks: int | Sequence[int],
        block_tokens: int,
        *,
        numerics: str = "",
        model: str = "",
        enable_prefix_caching: bool = True,
        hit_backoff: int = 0,
        lookahead: int = 0,
        num_snapshots: int = 1,
        snapshot_every: int = 0,
    ) -> None:
        for group in groups:
            if group.rule == "window" and group.window < 1:
                raise UnsupportedError(f"KV group {group.name}: a window needs at least 1 token, not {group.window}")
        self._numbers = [number for number, group in enumerate(groups) if group.rule != "state"]
        stateful = len(self._numbers) < len(groups)
        self.all_groups = tuple(groups)
        self.groups = tuple(groups[number] for number in self._numbers)
        sizes = [num_blocks] * len(self.groups) if isinstance(num_blocks, int) else list(num_blocks)
        self.pools = [BlockPool(size) for size in sizes]
        self.block_tokens = block_tokens
        self.enable_prefix_caching = enable_prefix_caching
        self.hit_backoff = hit_backoff
        self.lookahead = lookahead
        self.holdings: dict[str, Holding] = {}
        self._chains: dict[str, KeyChain] = {}
        self._computing: dict[bytes, int] = {}
        self._namespace = digest("octavo prefix", "numerics", numerics, "model", model, "block", block_tokens)
        self._windows = [(i, group.window) for i, group in enumerate(self.groups) if group.rule == "window"]
        self.states = Snapshots(num_snapshots, self._blocks(snapshot_every), block_tokens) if stateful else None

    @property
    def capacity(self) -> int:
        """Tokens of one request that has the cache to itself."""
        tokens = [
            pool.usable * self.block_tokens
            for group, pool in zip(self.groups, self.pools, strict=True)
            if group.rule == "full" or pool.usable < self._window_blocks(group.window)
        ]
        return min(tokens, default=2**62)

    def _window_blocks(self, window: int) -> int:
        """Blocks that can be in sight of one token, its own and what is looked ahead included."""
        return -(-(window + self.lookahead) // self.block_tokens) + 1

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    # ---- keys and hits

    def chain(self, request: Request) -> KeyChain:
        """Keys of every full block of the request's known tokens; empty when nothing is cached."""
        chain = self._chains.get(request.id)
        if chain is None:
            root = digest(self._namespace, "adapter", request.adapter, "salt", request.salt)
            chain = self._chains[request.id] = KeyChain(root)
        if self.enable_prefix_caching:
            chain.extend(request, request.num_tokens // self.block_tokens, self.block_tokens)
        return chain

    def match(self, request: Request) -> int:
        """Blocks of the longest known prefix that every group still has. A hit that covers every token is allowed: the
        last one is computed again without writing. Not so with recurrent state, which would take it in twice."""
        if not self.enable_prefix_caching or not request.reusable:
            return 0
        keys, known = self.chain(request).keys, request.num_tokens
        length = self._complete(keys, min(len(keys), self._most(request) // self.block_tokens))
        while length and (missing := self._missing(keys, length, known)) is not None:
            length = missing
        return length

    def _most(self, request: Request) -> int:
        """Tokens that a hit may cover."""
        known = request.num_tokens
        limit = known - 1 - self.hit_backoff if self.hit_backoff or self.states is not None else known
        return max(min(limit, request.reusable), 0)

    def _complete(self, keys: list[bytes], length: int) -> int:
        """Blocks, at most `length`, that every full group has."""
        for group, pool in zip(self.groups, self.pools, strict=True):
            if group.rule == "full":
                length = next((i for i in range(length) if keys[i] not in pool), length)
        return length

    def _missing(self, keys: list[bytes], length: int, known: int) -> int | None:
        """The last block that a window group needs for a hit of `length` blocks and lacks; the snapshot before it when
        there is none at its end."""
        if self.states is not None and (shorter := self.states.longest(keys, length)) < length:
            return shorter
        computed = min(length * self.block_tokens, known - 1)
        for index, window in self._windows:
            pool = self.pools[index]
            first = max(computed - window, 0) // self.block_tokens
            for block in range(length - 1, first - 1, -1):
                if keys[block] not in pool:
                    return block
        return None

    def awaits(self, request: Request, hit: int) -> bool:
        """Whether the block after the hit (with recurrent state: a snapshot after it) is being computed by another
        request: waiting is cheaper than a twin."""
        if not request.reusable:
            return False
        keys, useful = self.chain(request).keys, self._most(request) // self.block_tokens
        if self.states is not None:
            return self.states.awaited(keys[hit:useful])
        return hit < min(len(keys), useful) and keys[hit] in self._computing

    # ---- blocks

    def ahead(self, request: Request) -> int:
        """Tokens that are looked ahead for the request: none where nothing is proposed."""
        return self.lookahead if request.params.speculate else 0

    def need(self, request: Request, upto: int) -> int:
        """Tokens for which a row that ends at `upto` wants room. One that may sample wants what is looked ahead, inside
        the length of the request: no draft stands behind that."""
        if upto < request.num_tokens:
            return upto
        return max(upto, min(upto + self.ahead(request), request.max_total - 1))

    def within(self, request: Request, upto: int, room: int) -> int:
        """Where a row may end, at most `upto`, that has room for `room` tokens."""
        return upto if self.need(request, upto) <= room else min(upto - 1, room)

    def admit(self, request: Request, hit: int, upto: int, whole: int) -> int:
        """Opens a holding: shares `hit` blocks and reserves more, in all groups or none. Returns the token index up to
        which there is room, at most `upto`; 0, with nothing changed, when `whole` tokens would not fit now. What is
        looked ahead counts in all of it."""
        keys = self.chain(request).keys
        hit_tokens = min(hit * self.block_tokens, request.num_tokens - 1)
        shared: list[list[int]] = []
        room = self._blocks(self.need(request, upto))
        whole = self.need(request, whole)
        for group, pool in zip(self.groups, self.pools, strict=True):
            first = max(hit_tokens - group.window, 0) // self.block_tokens if group.rule == "window" else 0
            blocks = [NULL] * first + [pool.find(key) or NULL for key in keys[first:hit]]
            need = self._blocks(whole) - hit
            if group.rule == "window":
                need = min(need, self._window_blocks(group.window) - (hit - first))
            spare = pool.available - sum(1 for block in blocks if block and not pool.refs[block])
            if need > spare:
                return 0
            room = min(room, hit + spare)
            shared.append(blocks)
        for pool, blocks in zip(self.pools, shared, strict=True):
            for block in blocks:
                if block:
                    pool.share(block)
        claimed = len(keys) if self.states is None else hit
        self.holdings[request.id] = Holding(
            [GroupTable(blocks) for blocks in shared], hit, claimed, self.ahead(request)
        )
        for key in keys[hit:claimed]:
            self._computing[key] = self._computing.get(key, 0) + 1
        if self.states is not None:
            prompt = (len(request.prompt_ids) - 1) // self.block_tokens
            self.states.open(request.id, keys, hit, hit_tokens, {prompt, self._complete(keys, len(keys))})
        upto = self.within(request, upto, room * self.block_tokens)
        self.reserve(request, self.need(request, upto))
        return upto

    def _unclaim(self, key: bytes) -> None:
        left = self._computing[key] - 1
        if left:
            self._computing[key] = left
        else:
            del self._computing[key]

    def reach(self, request: Request) -> int:
        """The token index up to which the request could reserve now."""
        tables = self.holdings[request.id].tables
        blocks = min((len(t.blocks) + p.available for t, p in zip(tables, self.pools, strict=True)), default=2**62)
        return blocks * self.block_tokens

    def reserve(self, request: Request, upto: int) -> bool:
        """Room for tokens [0, upto), in all groups or none."""
        holding = self.holdings[request.id]
        if upto <= holding.room:
            return True
        tables, want = holding.tables, -(-upto // self.block_tokens)
        for table, pool in zip(tables, self.pools, strict=True):
            if want - len(table.blocks) > pool.available:
                return False
        for table, pool in zip(tables, self.pools, strict=True):
            while len(table.blocks) < want:
                table.blocks.append(pool.take())
        holding.room, holding.told = want * self.block_tokens, False
        return True

    def advance(self, request: Request, start: int, known: int) -> tuple[StateStep, ...]:
        """What a row over the known tokens [start, start + known) does to recurrent state: nothing without any."""
        if self.states is None:
            return ()
        step = self.states.advance(request.id, start, known, keep=self.enable_prefix_caching)
        if step.snapshots:
            self.holdings[request.id].due = 0
        return (step,)

    def publish(self, request: Request, computed: int) -> None:
        """Tokens [0, computed) are in the cache for good: full blocks get their keys, windows slide."""
        holding = self.holdings[request.id]
        if computed < holding.due:
            return
        full = computed // self.block_tokens
        if full > holding.published:
            self._publish(request, holding, full)
        if self.states is not None:
            self.states.publish(request.id, self.chain(request).keys, full, sound=not holding.tainted)
        holding.due = (holding.published + 1) * self.block_tokens
        for index, window in self._windows:
            table = holding.tables[index]
            self._slide(table, self.pools[index], computed - window)
            holding.due = min(holding.due, window + (table.nulls + 1) * self.block_tokens)
            holding.told = False

    def _publish(self, request: Request, holding: Holding, full: int) -> None:
        """Full blocks come under their keys; whoever awaits them may look."""
        if self.enable_prefix_caching:
            chain = self.chain(request)
            for block in range(holding.published, full):
                key = chain.keys[block]
                if not holding.tainted:
                    for table, pool in zip(holding.tables, self.pools, strict=True):
                        pool.publish(table.blocks[block], key, chain.parent(block))
                if block < holding.claimed:
                    self._unclaim(key)
        holding.published = full

    def _slide(self, table: GroupTable, pool: BlockPool, horizon: int) -> None:
        behind = min(horizon // self.block_tokens, len(table.blocks))
        for block in range(table.nulls, behind):
            pool.drop(table.blocks[block])
            table.blocks[block] = NULL
        table.nulls = max(table.nulls, behind)

    def trim(self, request: Request, to: int) -> None:
        """Gives back blocks that hold no token before `to`, nor one that is looked ahead."""
        holding = self.holdings[request.id]
        keep = -(-(to + holding.ahead) // self.block_tokens)
        holding.room = min(holding.room, keep * self.block_tokens)
        for table, pool in zip(holding.tables, self.pools, strict=True):
            while len(table.blocks) > keep:
                pool.drop(table.blocks.pop())
            if table.sent > keep:
                table.sent = keep

    def release(self, request: Request) -> None:
        """Gives everything back, children before parents, so that a chain is evicted from its end."""
        holding = self.holdings.pop(request.id)
        for key in self._chains[request.id].keys[holding.published : holding.claimed]:
            self._unclaim(key)
        for table, pool in zip(holding.tables, self.pools, strict=True):
            for block in reversed(table.blocks):
                if block:
                    pool.drop(block)
        if self.states is not None:
            self.states.release(request.id)

    def discard(self, request: Request) -> None:
        """The request is gone: its keys need not be kept at hand."""
        self._chains.pop(request.id, None)

    def forget(self, request: Request) -> None:
        """What the request read or wrote is suspect: no block of its chain, nor of any chain that grew from it, can be
        found any more. Others that hold such blocks go on but publish nothing."""
        doomed = set(self.chain(request).keys)
        for group, pool in zip(self.groups, self.pools, strict=True):
            if group.rule == "full":
                doomed |= pool.forget(doomed)
        for index, _ in self._windows:  # chains have gaps there: what grew from where cannot be told
            self.pools[index].clear()
        if self.states is not None:
            self.states.pool.clear()
        for other, holding in self.holdings.items():
            if not doomed.isdisjoint(self._chains[other].keys[: holding.published]):
                holding.tainted = True

    # ---- what the machine must be told

    def updates(self, request: Request, slot: int) -> list[TableUpdate]:
        """Differences of the request's tables since the last call."""
        found: list[TableUpdate] = []
        holding = self.holdings[request.id]
        if holding.told:
            return found
        holding.told = True
        for group, table in zip(self._numbers, holding.tables, strict=True):
            nulls = min(table.nulls, table.sent)
            if nulls > table.nulls_sent:
                count = nulls - table.nulls_sent
                found.append(TableUpdate(slot, group, table.nulls_sent, (NULL,) * count))
            table.nulls_sent = table.nulls
            if len(table.blocks) > table.sent:
                found.append(TableUpdate(slot, group, table.sent, tuple(table.blocks[table.sent :])))
                table.sent = len(table.blocks)
        return found
