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
    check_claims(ledger)
    check_requests(scheduler)


def check_pool(ledger, group: int) -> None:
    """I1 conservation by id, I2 reference counts, I3 one state per block, I4 unshared until full, I7 chains whole."""
    pool = ledger.pools[group]
    holders: Counter[int] = Counter()
    partial: set[int] = set()
    for holding in ledger.holdings.values():
        table = holding.tables[group]
        holders.update(table.blocks)
        partial.update(table.blocks[holding.published :])
        for place, block in enumerate(table.blocks):
            require((block == 0) == (place < table.nulls), "I3", f"entry {place} is {block}, {table.nulls} are null")
    holders.pop(0, None)
    free, idle, held = set(pool.free), set(pool.idle), set(holders)
    require(len(free) == len(pool.free), "I3", "a block is twice on the free list")
    require(not (free & idle or free & held or idle & held), "I3", "a block is in two states")
    require(
        0 not in free and 0 not in idle and pool.keys[0] is None and not pool.refs[0], "I3", "the null block is in use"
    )
    everything = set(range(1, pool.num_blocks))
    require(free | idle | held == everything, "I1", f"lost blocks {everything - free - idle - held}")
    for block in range(1, pool.num_blocks):
        refs = pool.refs[block]
        require(refs == holders[block], "I2", f"block {block}: {refs} references, {holders[block]} entries")
        key = pool.keys[block]
        if block in idle:
            require(key is not None, "I1", f"idle block {block} cannot be found")
        if block in free:
            require(key is None, "I3", f"free block {block} has a key")
        require(refs <= 1 or block not in partial, "I4", f"block {block} is shared before it is full")
        if key is not None:
            require(block in pool._by_key.get(key, ()), "I6", f"block {block} is not under its key")
            if ledger.groups[group].rule == "full":
                whole = pool.parents[block] in pool or pool.parents[block] in ledger.roots
                require(whole, "I7", f"block {block} outlives its parent")
    require(sum(map(len, pool._by_key.values())) == sum(k is not None for k in pool.keys), "I6", "stale index entries")


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
        require(request.computed <= request.planned, "I5", f"{name}: computed {request.computed} > planned")
        require(request.computed <= request.num_tokens, "I5", f"{name}: more computed than known")
        size = -(-max(request.planned, entry.copies_end) // ledger.block_tokens)
        for table in ledger.holdings[name].tables:
            hit_or_size = len(table.blocks) == size
            require(hit_or_size, "I5", f"{name}: {len(table.blocks)} entries, {size} expected")
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
    for pool in ledger.pools:
        require(pool.available == pool.usable, "I18", f"{pool.usable - pool.available} blocks are in use")
    require(len(scheduler.waiting) == 0 and not scheduler.waiting._classes, "I18", "the queue is not empty")
