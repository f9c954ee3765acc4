"""`octavo explain MODEL --drafts`: what a draft costs on this machine, and how many are worth it.

A draft is a further row of the step that decodes. The JSON, one object: model, context, batches [{batch, step_s (by
drafts of each request), worth [{acceptance, drafts, gain}]}].
"""

from __future__ import annotations

import json
from typing import Any

from octavo.cli.screen import progress, table
from octavo.config import EngineConfig
from octavo.runner.further import DRAFTS, Further, further

BATCHES = (1, 8, 32)
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def run(model: str, config: EngineConfig, batches: tuple[int, ...], context: int, *, as_json: bool) -> int:
    with progress("loading") as advance:
        found = further(config, batches, context, advance)
    columns = ("batch", "a step", *(f"+{drafts}" for drafts in (1, 2, 4, DRAFTS)))
    table(f"{model}: decode after {context} tokens, and so many drafts a request", columns, list(map(_costs, found)))
    columns = ("batch", *(f"of {acceptance:g} accepted" for acceptance in ACCEPTANCES))
    table("drafts that are worth it, and tokens a second over those without", columns, list(map(_worth, found)))
    if as_json:
        print(json.dumps({"model": model, "context": context, "batches": list(map(_document, found))}))
    return 0


def _costs(found: Further) -> tuple[str, ...]:
    plain = found.seconds[0]
    more = (f"{found.seconds[drafts] / plain:.2f} x" for drafts in (1, 2, 4, DRAFTS))
    return (str(found.batch), f"{1e3 * plain:.2f} ms", *more)


def _worth(found: Further) -> tuple[str, ...]:
    said = (found.worth(acceptance) for acceptance in ACCEPTANCES)
    return (str(found.batch), *(f"{drafts} ({gain:.2f} x)" if drafts else "none" for drafts, gain in said))


def _document(found: Further) -> dict[str, Any]:
    worth = [
        {"acceptance": acceptance, "drafts": drafts, "gain": round(gain, 4)}
        for acceptance in ACCEPTANCES
        for drafts, gain in [found.worth(acceptance)]
    ]
    return {"batch": found.batch, "step_s": list(found.seconds), "worth": worth}
