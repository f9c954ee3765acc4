"""A simulation that never fails proves little: each planted bug must be found by it within a bounded number of seeds."""

# ruff: noqa: E501

import pytest

from policy.fake import Violation
from policy.patch import patched, source_of
from policy.sim import simulate

SEEDS, STEPS = 400, 120

# name: (file, text in it, what the bug makes of it)
PLANTED = {
    "I1 a dropped block is lost": ("blocks", "            self.free.append(block)\n        else", "            pass\n        else"),
    "I1 the last block is not released": ("kv", "in reversed(table.blocks):", "in reversed(table.blocks[:-1]):"),
    "I2 sharing does not count": ("blocks", "        self.refs[block] += 1", "        self.refs[block] += not self.refs[block]"),
    "I2 reused block keeps a reference": ("blocks", "        self.refs[block] = 1", "        self.refs[block] += 2"),
    "I3 the null block is dropped": ("kv", "                if block:\n                    pool.drop", "                if True:\n                    pool.drop"),
    "I3 a slid block stays in the table": ("kv", "            table.blocks[block] = NULL", "            pass"),
    "I3 an evicted block keeps its key": ("blocks", "            self._unkey(block)\n            self.evictions", "            self.evictions"),
    "I4 a full hit writes its last token": ("scheduler", "no_write=covered > start)", "no_write=False)"),
    "I4 a block that is not full is published": ("kv", "        full = computed // self.block_tokens", "        full = -(-computed // self.block_tokens)"),
    "I4 drafts count as computed": ("scheduler", "self.ledger.publish(request, min(firm, request.computed))", "self.ledger.publish(request, min(row.start + len(row.token_ids), request.num_tokens))"),
    "I5 rejected drafts keep their blocks": ("scheduler", "            self.ledger.trim(request, max(request.computed, entry.copies_end))", "            pass"),
    "I5 one block too many": ("kv", "tables, want = holding.tables, -(-upto // self.block_tokens)", "tables, want = holding.tables, upto // self.block_tokens + 1"),
    "I5 one block too few": ("kv", "tables, want = holding.tables, -(-upto // self.block_tokens)", "tables, want = holding.tables, upto // self.block_tokens"),
    "I6 the key forgets the salt": ("kv", '"salt", request.salt', '"salt", ""'),
    "I6 the key forgets the adapter": ("kv", '"adapter", request.adapter', '"adapter", ""'),
    "I6 adapter and salt are not told apart": ("kv", 'self._namespace, "adapter", request.adapter, "salt", request.salt', "self._namespace, request.adapter + request.salt"),
    "I6 the key forgets the parent": ("kv", "self.parent(block) + tokens.tobytes()", "tokens.tobytes()"),
    "I6 a request that needs all rows takes a hit": ("kv", "min(limit, request.reusable)", "limit"),
    "I6 a block is published before its copies are done": ("scheduler", "            firm = entry.copies[0][1] if entry.copies else firm", "            pass"),
    "I6 bad blocks stay in the cache": ("scheduler", "self.ledger.forget(entry.request)", "pass"),
    "I6 what grew from bad blocks stays": ("blocks", "                if key not in doomed:", "                if False:"),
    "I6 late bad news are ignored": ("scheduler", "            if not outcome.finite:", '            if not outcome.finite and entry.request.state != "finished":'),
    "I6 windows are not asked for the hit": ("kv", "            first = max(computed - window, 0) // self.block_tokens\n", "            first = length\n"),
    "I1 a snapshot on its way is lost": ("state", "        for snapshot in (standing.restore, *standing.pending.values()):", "        for snapshot in (standing.restore,):"),
    "I1 a snapshot that is there already is lost": ("state", "            self.pool.drop(snapshot)\n        for n in", "            if sound and snapshot in self.pool._by_key.get(key, ()):\n                self.pool.drop(snapshot)\n        for n in"),
    "I2 a snapshot to start from is not held": ("state", "            self.pool.share(restore)", "            pass"),
    "I3 a snapshot is taken that another has": ("state", "standing.pending[n] = self.pool.take()", "standing.pending[n] = 1"),
    "I6 a hit ends where there is no snapshot": ("kv", "if self.states is not None and (shorter", "if False and (shorter"),
    "I6 a hit covers every token of recurrent state": ("kv", "if self.hit_backoff or self.states is not None else known", "if self.hit_backoff else known"),
    "I6 bad snapshots stay in the cache": ("kv", "            self.states.pool.clear()", "            pass"),
    "I6 a snapshot is counted from the row's start": ("state", "(n * size - before, ", "(n * size - start, "),
    "I6 a snapshot holds a token too few": ("state", "(n * size - before, ", "(n * size - before - (n * size - before > 1), "),
    "I11 claims on snapshots outlive their block": ("state", "            self._unclaim(standing.claimed.pop(n))", "            pass"),
    "I11 claims on snapshots outlive their request": ("state", "        for key in standing.claimed.values():\n            self._unclaim(key)", "        pass"),
    "I14 accepted drafts are not replayed": ("state", "StateStep(start - before, ", "StateStep(0, "),
    "I14 a row that goes on starts from the snapshot": ("state", "standing.restored = start + known, True", "standing.restored = start + known, False"),
    "I14 a request starts without its snapshot": ("state", "restore = standing.firm, 0 if standing.restored else standing.restore", "restore = standing.firm, 0"),
    "I14 drafts enter the state": ("scheduler", "self.ledger.advance(request, start, tokens)", "self.ledger.advance(request, start, count)"),
    "I18 snapshots are not published": ("kv", "            self.states.publish(request.id", "            computed or self.states.publish(request.id"),
    "I7 parents are dropped before children": ("kv", "in reversed(table.blocks):", "in table.blocks:"),
    "I7 the newest is evicted": ("blocks", "popitem(last=False)", "popitem(last=True)"),
    "I8 a refused admission keeps what it shared": ("kv", "            if need > spare:\n", "            for block in blocks if need > spare else ():\n                pool.refs[block] += 1\n            if need > spare:\n"),
    "I9 the ended are not freed after their last plan": ("scheduler", "                if not entry.outstanding:\n                    self._discard(entry)", "                pass"),
    "I9 an aborted request is freed under a plan": ("scheduler", "        if not entry.outstanding:\n            self._discard(entry)\n        return", "        self._discard(entry)\n        return"),
    "I9 a request in a plan is preempted": ("scheduler", "            if not other.outstanding:\n                return other", "            return other"),
    "I10 drafts cost no tokens": ("scheduler", "        step.tokens -= count", "        step.tokens -= tokens"),
    "I10 logit rows are not counted": ("scheduler", "        step.logits -= count - logits", "        pass"),
    "I10 a slot is lost": ("scheduler", "        self._slots.append(entry.request.slot)", "        pass"),
    "I11 claims outlive their request": ("kv", "            self._unclaim(key)\n        for table", "            pass\n        for table"),
    "I11 the last free block is never used": ("kv", "            if need > spare:", "            if need >= spare:"),
    "I12 last come, first served": ("queue", "self._places[request.id] = (request.arrival, next(self._order), request)\n        tenants", "self._places[request.id] = (-request.arrival, next(self._order), request)\n        tenants"),
    "I12 everybody below is preempted at will": ("scheduler", "            if other is entry:\n                return None", "            if other is entry:\n                continue"),
    "I13 a prompt larger than the cache is queued": ("scheduler", "        if prompt > capacity:", "        if prompt > 10 * capacity:"),
    "I13 a prompt as long as the context is queued": ("scheduler", "        if floor > longest:", "        if floor > longest + 1:"),
    "I14 a full hit leaves nothing to compute": ("scheduler", "            start = min(covered, end - 1)", "            start = covered"),
    "I14 the window slides too far": ("kv", "self.pools[index], computed - window)", "self.pools[index], computed - window + 2 * self.block_tokens)"),
    "I14 copies are forgotten": ("scheduler", "step.copies += [KVCopy(slot, source, target) for source, target in entry.copies]", "pass"),
    "I14 trimmed entries are not sent again": ("kv", "                table.sent = keep", "                pass"),
    "I9 a prepared row outlives its place in the machine": ("scheduler", "        entry.next = None\n", ""),
    "I14 a decode passes over what ends it": ("decode", "token in entry.enders or ", ""),
    "I14 a decode ends one token late": ("decode", "computed + 1 >= request.max_total", "computed >= request.max_total"),
    "I4 a decode does not publish": ("decode", " or computed >= holding.due", ""),
    "I10 a decode costs no token": ("decode", "    step.tokens -= 1\n", ""),
    "I14 output goes on after a stop id": ("outcome", "            if token in params.stop_token_ids:", "            if False:"),
    "I14 end of text counts before min_tokens": ("outcome", "        if len(output) >= params.min_tokens:", "        if True:"),
    "I14 one token too many": ("outcome", "        if len(output) >= room:", "        if len(output) > room:"),
    "I14 logprobs of tokens after the stop": ("outcome", "outcome.logprobs[: len(tokens)]", "outcome.logprobs"),
    "I14 prompt rows are told again after preemption": ("scheduler", "            return max(start, entry.delivered, request.first_row)", "            return max(start, request.first_row)"),
    "I15 the machine is not told of a freed slot": ("scheduler", "        self._freed_slots.append(entry.request.slot)", "        pass"),
    "I16 an ended request is ended again": ("scheduler", '''        if entry is None or entry.request.state == "finished":
            return None
        state:''', "        if entry is None:\n            return None\n        state:"),
    "I16 a late result speaks": ("scheduler", '            if entry.request.state == "finished":\n                self.stats', '            if entry.request.state == "finished":\n                deltas.append(delta(entry.request, outcome.token_ids, outcome))\n                self.stats'),
    "I17 blocks are taken at random": ("blocks", "self.free.pop()", 'self.free.pop(__import__("random").randrange(len(self.free)))'),
    "I19 no room is looked ahead for": ("kv", "        return max(upto, min(upto + self.ahead(request), request.max_total - 1))", "        return upto"),
    "I19 drafts take the room that is looked ahead": ("scheduler", "self.ledger.need(request, end + room)", "end + room"),
    "I19 a decode looks nowhere ahead": ("decode", "min(computed + holding.ahead, request.max_total - 2)", "computed"),
    "I11 a window has no room to look ahead": ("kv", "-(-(window + self.lookahead)", "-(-window"),
    "I18 keys of the gone are kept": ("scheduler", "        self.ledger.discard(entry.request)\n", ""),
    "I18 a finished request keeps its place": ("scheduler", "        del self._entries[entry.request.id]", "        pass"),
}  # fmt: skip


def hunt(twice: bool) -> str | None:
    """What was found first, if anything: the rule of the violation, or the exception's name."""
    for seed in range(SEEDS):
        try:
            trace = simulate(seed, STEPS).trace
            if twice and simulate(seed, STEPS).trace != trace:
                return "I17"
        except Violation as fault:
            return fault.rule
        except Exception as fault:  # any crash is a finding
            return type(fault).__name__
    return None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name):
    file, old, new = PLANTED[name]
    source = source_of(file)
    assert source.count(old) == 1, f"the text to patch stands {source.count(old)} times in {file}.py"
    with patched(file, source.replace(old, new)):
        found = hunt(twice=name.startswith("I17"))
    assert found is not None


def test_every_invariant_has_a_planted_bug():
    assert {name.split()[0] for name in PLANTED} == {f"I{number}" for number in range(1, 20)}


def test_without_a_bug_nothing_is_found():
    with patched("blocks", source_of("blocks")):
        assert simulate(0, STEPS).plans >= STEPS
