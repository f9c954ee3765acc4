"""Plans of a recorded run made again: the same scheduler, fed the same requests and results, row for row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.errors import BadFileError, OctavoError
from octavo.policy.journal import Aborted, Added, Committed, Finished, Made, Planned, read
from octavo.policy.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Replay:
    """difference: of the first plan that is not the recorded one, in words; None where all are."""

    plans: int
    rows: int
    requests: int
    cached_tokens: int
    preemptions: int
    drafts: int
    aborts: int
    difference: str | None


def replay(path: Path) -> Replay:
    """Raises MissingFileError, BadFileError."""
    scheduler: Scheduler | None = None
    plans = rows = requests = drafts = 0
    difference = None
    for entry in read(path):
        if isinstance(entry, Made):
            scheduler = entry.scheduler()
            continue
        if scheduler is None:
            raise BadFileError(f"{path}: does not begin with how its scheduler was made")
        try:
            match entry:
                case Added(request):
                    requests += 1
                    scheduler.add(request)
                case Aborted(request_id):
                    scheduler.abort(request_id)
                case Finished(request_id, at_token, reason, stop_reason):
                    scheduler.finish(request_id, at_token, reason, stop_reason)
                case Planned(now, recorded):
                    plan = scheduler.schedule(now)
                    if plan != recorded:
                        difference = f"plan {recorded.number}: {_first_difference(plan, recorded)}"
                        break
                    plans += bool(plan)
                    rows += len(plan.rows)
                    drafts += sum(row.num_drafts for row in plan.rows)
                case Committed(plan, result):
                    scheduler.commit(plan, result)
        except OctavoError:
            continue  # it was refused there too: what came of it shows in the plans
    if scheduler is None:
        raise BadFileError(f"{path}: empty")
    stats = scheduler.stats
    ended = sum(stats.aborts.values())
    return Replay(plans, rows, requests, stats.cached_tokens, stats.preemptions, drafts, ended, difference)


def _first_difference(plan: object, recorded: object) -> str:
    for name in ("rows", "tables", "copies", "freed_slots", "states"):
        mine, theirs = getattr(plan, name), getattr(recorded, name)
        if mine != theirs:
            place = next(
                (n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs))
            )
            return f"{name}[{place}] is {mine[place : place + 1]}, was {theirs[place : place + 1]}"
    return "its number"
