"""What a row does to its request: output grows until something ends it, accepted tree tokens are to be moved, drafts
for the next step are taken over, and a delta says so. The rules of stopping by token are here and nowhere else."""

from __future__ import annotations

from octavo.errors import EngineError
from octavo.request import FinishReason, Request, Row, RowResult, TokenDelta


def append_output(request: Request, tokens: tuple[int, ...]) -> tuple[FinishReason | None, int | None, tuple[int, ...]]:
    """Appends up to the first token that ends the request: the reason, the stop id when it was one, the tokens kept."""
    params, output = request.params, request.output_ids
    room = request.max_total - len(request.prompt_ids)
    for i, token in enumerate(tokens):
        output.append(token)
        if len(output) >= params.min_tokens:
            if token in request.eos_ids and not params.ignore_eos:
                return "stop", None, tokens[: i + 1]
            if token in params.stop_token_ids:
                return "stop", token, tokens[: i + 1]
        if len(output) >= room:
            return "length", None, tokens[: i + 1]
    return None, None, tokens


def moves(row: Row, accepted: tuple[int, ...]) -> list[tuple[int, int]]:
    """(source, target) indices: accepted tokens of a tree stand where their siblings left them. Targets rise and lie
    before their sources, so that one after the other or all at once is the same."""
    known = len(row.token_ids) - row.num_drafts
    return [
        (row.start + source, row.start + target) for target, source in enumerate(accepted, known) if source != target
    ]


def take_drafts(request: Request, outcome: RowResult) -> None:
    """Parents that make a chain are dropped: a chain has none. Raises EngineError for parents that make no tree."""
    drafts, parents = outcome.draft_ids, outcome.draft_parents
    if parents:
        if len(parents) != len(drafts) or any(not -1 <= parent < i for i, parent in enumerate(parents)):
            raise EngineError(f"request {request.id}: draft parents {parents} do not fit {len(drafts)} drafts")
        if all(parent == i - 1 for i, parent in enumerate(parents)):
            parents = ()
    request.draft_ids, request.draft_parents = drafts, parents


def delta(request: Request, tokens: tuple[int, ...], outcome: RowResult, drafted: int = 0) -> TokenDelta:
    """What leaves commit: the tokens that were kept, their log-probabilities, how the request stands. drafted: how many
    drafts its row had."""
    return TokenDelta(
        request.id,
        tokens,
        outcome.logprobs[: len(tokens)],
        outcome.prompt_logprobs,
        request.finish_reason,
        request.stop_reason,
        request.cached,
        request.computed,
        request.queued,
        request.preemptions,
        outcome.embedding,
        drafted=drafted,
        accepted=len(outcome.accepted),
    )
