"""A decode that goes on: the request has sampled one more token and nothing else happens to it.

Nearly all rows of nearly all steps are such. `advance` moves the request while its objects are at hand and leaves the
row of its next step in Entry.next, which `collect` puts into the plan: what a step costs beside the model is mostly
objects that the model has driven out of the caches. Both do what the scheduler's own way would do, and leave every
other case to it.
"""

from __future__ import annotations

from octavo.policy.step import Entry, Step
from octavo.request import Row, TokenDelta


def advance(entry: Entry, row: Row, token: int, *, prepare: bool) -> TokenDelta | None:
    """The request goes on after `token`. None, with nothing changed, when it ends, a block is full, or more is due.
    prepare: no group needs to be asked for each row."""
    request, holding = entry.request, entry.holding
    computed = row.start + len(row.token_ids)
    if request.state != "running" or row.num_drafts or not row.sample or entry.copies_end or request.prompt_rows:
        return None
    if token in entry.enders or computed + 1 >= request.max_total or computed >= holding.due:
        return None
    tokens = (token,)
    request.output_ids.append(token)
    request.computed = request.planned = computed
    if prepare and min(computed + holding.ahead, request.max_total - 2) < holding.room and holding.told:
        entry.next = Row(row.request_id, row.slot, computed, tokens, 0, True, 0, (), False, row.adapter)
    return TokenDelta(row.request_id, tokens, (), (), None, None, request.cached, computed, request.queued)


def collect(step: Step, entry: Entry, row: Row) -> None:
    """Plans the row that `advance` left: its token has its place in the cache, and the machine knows the place."""
    entry.next = None
    entry.outstanding += 1
    entry.request.planned = row.start + 1
    step.rows.append(row)
    step.entries.append(entry)
    step.tokens -= 1
    step.logits -= 1
