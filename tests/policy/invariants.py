"""The invariants that can be read off the scheduler and its ledger at any moment (numbers as in the test's table)."""

from __future__ import annotations

from collections import Counter

from octavo.policy.scheduler import Scheduler
from octavo.request import StepPlan
from policy.fake import Violation


def require(truth: bool, rule: str, message: str) -> None:
    if not truth:
        raise Violation(rule, message)


def check_state(scheduler: Scheduler) -> None:
    ledger = scheduler.ledger
    for group in range(len(ledger.pools)):
        check_pool(ledger, group)
    if ledger.states is not None:
        check_snapshots(ledger)
    check_claims(ledger)
    check_requests(scheduler)


def check_pool(ledger, group: int) -> None:
    """I1 conservation by id, I2 reference counts, I3 one state per block, I4 unshared until full, I7 chains whole."""
    pool = ledger.pools[group]
    counts = [0] * pool.num_blocks
    partial: set[int] = set()
    for holding in ledger.holdings.values():
        table = holding.tables[group]
        for block in table.blocks:
            counts[block] += 1
        partial.update(table.blocks[holding.published :])
        nulls = [block == 0 for block in table.blocks]
        require(nulls == [place < table.nulls for place in range(len(nulls))], "I3", f"null entries of {table.blocks}")
    counts[0] = 0
    if counts != pool.refs:
        raise Violation("I2", f"references {pool.refs}, table entries {counts}")
    free, idle, held = set(pool.free), set(pool.idle), {block for block, count in enumerate(counts) if count}
    require(len(free) == len(pool.free), "I3", "a block is twice on the free list")
    require(not (free & idle or free & held or idle & held), "I3", "a block is in two states")
    require(0 not in free and 0 not in idle and pool.keys[0] is None, "I3", "the null block is in use")
    require(len(free) + len(idle) + len(held) == pool.usable, "I1", "a block is lost")
    for block in partial:
        if counts[block] > 1:
            raise Violation("I4", f"block {block} is shared before it is full")
    check_index(ledger, group, free, idle)


def check_index(ledger, group: int, free: set[int], idle: set[int]) -> None:
    """I1, I3 idle blocks can be found and free ones cannot, I6 under their own key, I7 with the whole chain above."""
    pool = ledger.pools[group]
    chained = ledger.groups[group].rule == "full"
    keyed = {block for block, key in enumerate(pool.keys) if key is not None}
    require(idle <= keyed, "I1", "an idle block cannot be found")
    require(not free & keyed, "I3", "a free block has a key")
    require(sum(map(len, pool._by_key.values())) == len(keyed), "I6", "stale index entries")
    for block in keyed:
        if block not in pool._by_key.get(pool.keys[block], ()):
            raise Violation("I6", f"block {block} is not under its key")
        if chained and pool.parents[block] not in pool and pool.parents[block] not in ledger.roots:
            raise Violation("I7", f"block {block} outlives its parent")


def check_snapshots(ledger) -> None:
    """I1 to I3 for snapshots: free, to be found, being written by one request or about to be read by some."""
    states = ledger.states
    pool = states.pool
    pending = [snapshot for standing in states.standings.values() for snapshot in standing.pending.values()]
    require(len(set(pending)) == len(pending), "I3", "two requests write one snapshot")
    read = [standing.restore for standing in states.standings.values() if standing.restore]
    counts = Counter([*pending, *read])
    require([counts[snapshot] for snapshot in range(pool.num_blocks)] == pool.refs, "I2", f"{counts}, not {pool.refs}")
    require(not set(pending) & set(read), "I4", "a snapshot is read while it is written")
    keyed = {snapshot for snapshot, key in enumerate(pool.keys) if key is not None}
    require(not keyed & {*pending, *pool.free} and set(pool.idle) <= keyed, "I3", "keys of snapshots")
    require(len(set(pool.free)) == len(pool.free), "I3", "a snapshot is twice on the free list")
    require(len(pool.free) + len(pool.idle) + len(counts) == pool.usable, "I1", "a snapshot is lost")
    require(set(states.standings) == set(ledger.holdings), "I9", "state and blocks part ways")
    claims: Counter[bytes] = Counter()
    for name, standing in states.standings.items():
        claims.update(standing.claimed.values())
        full = ledger.holdings[name].published
        require(
            all(n > full for n in standing.claimed), "I11", f"{name}: claims on {standing.claimed}, {full} computed"
        )
    require(dict(claims) == states.computing, "I11", "somebody waits for a snapshot that nobody takes")


def check_claims(ledger) -> None:
    claims: Counter[bytes] = Counter()
    for name, holding in ledger.holdings.items():
        claims.update(ledger._chains[name].keys[holding.published : holding.claimed])
    require(dict(claims) == ledger._computing, "I11", "somebody waits for a block that nobody computes")


def check_requests(scheduler: Scheduler) -> None:
    """I5 table lengths, I9 the ended leave with their last plan, I10 seats."""
    ledger, limits = scheduler.ledger, scheduler.limits
    named = Counter(row.request_id for plan in scheduler._plans for row in plan.rows)
    slots = list(scheduler._slots)
    for name, entry in scheduler._entries.items():
        request = entry.request
        require(entry.outstanding == named[name], "I9", f"{name}: {entry.outstanding} plans, {named[name]} name it")
        if request.state == "finished":
            require(entry.outstanding > 0, "I9", f"{name} has ended and nothing will free it")
        require((name in ledger.holdings) == (request.slot >= 0), "I9", f"{name}: blocks and slot part ways")
        if request.slot < 0:
            require(name in scheduler.waiting and request.computed == 0, "I9", f"{name} is nowhere")
            continue
        require(name not in scheduler.waiting, "I9", f"{name} waits and runs")
        slots.append(request.slot)
        if ledger.states is not None and not entry.outstanding:
            pending = ledger.states.standings[name].pending
            require(not pending, "I18", f"{name}: snapshots {pending}, which no plan writes")
        require(request.computed <= request.planned, "I5", f"{name}: computed {request.computed} > planned")
        require(request.computed <= request.num_tokens, "I5", f"{name}: more computed than known")
        tokens = max(request.planned, entry.copies_end)
        least, most = (-(-size // ledger.block_tokens) for size in (tokens, tokens + ledger.ahead(request)))
        for table in ledger.holdings[name].tables:
            size = len(table.blocks)
            require(least <= size <= most, "I5", f"{name}: {size} entries, {least} to {most} expected")
    require(set(ledger.holdings) <= set(scheduler._entries), "I9", "blocks of a request that is gone")
    require(sorted(slots) == list(range(limits.max_num_seqs)), "I10", f"slots {sorted(slots)}")
    require(set(ledger._chains) <= set(scheduler._entries), "I18", "keys of a request that is gone")


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """I10 budgets, I4 nothing shared or full is written; a row is what its request is."""
    limits, ledger = scheduler.limits, scheduler.ledger
    ids = [row.request_id for row in plan.rows]
    require(len(set(ids)) == len(ids) <= limits.max_num_seqs, "I10", f"requests {ids}")
    require(plan.num_tokens <= limits.max_num_batched_tokens, "I10", f"{plan.num_tokens} tokens")
    require(plan.num_logits <= limits.max_logit_rows, "I10", f"{plan.num_logits} logit rows")
    for row in plan.rows:
        request = scheduler._entries[row.request_id].request
        require(row.slot == request.slot, "I15", f"{row.request_id}: slot {row.slot}, not {request.slot}")
        known = len(row.token_ids) - row.num_drafts
        tokens = request.tokens(row.start, row.start + known)
        require(list(row.token_ids[:known]) == tokens, "I14", f"{row.request_id}: other tokens than its own")
        require(row.start + len(row.token_ids) < max(request.max_total, request.num_tokens + 1), "I5", "past the end")
        writes = list(range(row.start + row.no_write, row.start + len(row.token_ids)))
        writes += [copy.target for copy in plan.copies if copy.slot == row.slot]
        if row.sample and request.params.speculate:
            end = row.start + len(row.token_ids)
            writes += range(end, min(end + ledger.lookahead, request.max_total - 1))
        for group, table in enumerate(ledger.holdings[row.request_id].tables):
            for block in {table.blocks[index // ledger.block_tokens] for index in writes}:
                pool = ledger.pools[group]
                require(block != 0, "I4", f"{row.request_id} writes the null block")
                require(pool.refs[block] == 1, "I4", f"{row.request_id} writes shared block {block}")
                require(pool.keys[block] is None, "I4", f"{row.request_id} writes full block {block}")


def check_drained(scheduler: Scheduler) -> None:
    ledger = scheduler.ledger
    require(not scheduler._entries and not scheduler.has_work, "I18", "requests are left")
    require(not ledger.holdings and not ledger._chains and not ledger._computing, "I18", "the ledger is not empty")
    require(ledger.states is None or not ledger.states.computing, "I18", "claims of snapshots are left")
    for pool in (*ledger.pools, *([] if ledger.states is None else [ledger.states.pool])):
        require(pool.available == pool.usable, "I18", f"{pool.usable - pool.available} blocks are in use")
    require(len(scheduler.waiting) == 0 and not scheduler.waiting._classes, "I18", "the queue is not empty")
