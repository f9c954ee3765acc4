"""A caller's own function over the logits of one row: called, and watched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.request import Request


def processed(request: Request, drafts: Sequence[int], logits: Any) -> str:
    """Changes the row as the request's processor says, if it has one. What went wrong, "" for nothing: an error of the
    function ends its request and no other."""
    function = request.params.logits_processor
    if function is None:
        return ""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        returned = function([*request.prompt_ids, *request.output_ids, *drafts], logits)
    except Exception as error:
        said = str(error).partition("\n")[0]
        return f"logits_processor {name}: {type(error).__name__}: {said}"[:500]
    if returned is not None:
        return f"logits_processor {name}: changes the logits in place and returns nothing"
    if np.isnan(logits).any() or np.isposinf(logits).any():
        return f"logits_processor {name}: left NaN or infinity among the logits"
    return ""
