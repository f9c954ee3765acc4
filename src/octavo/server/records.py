"""What is known of requests, per key: those that run, and the last that have ended. No text, unless prompts are kept.

Times are seconds of time.monotonic, but for `created`. A record is made when a request arrives and shown once it is
bound to a model.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from octavo.engine.course import Course
from octavo.request import SamplingParams
from octavo.text.tokenizer import Tokenizer

KEPT = 128  # ended requests a key
KEPT_TOKENS = 32_768  # longer prompts are not kept
_PLAIN = SamplingParams(max_tokens=None)
_OURS = ("structure", "shown_special_ids")  # told elsewhere, or asked by nobody
_ALWAYS = ("temperature", "top_p", "max_tokens", "seed")


@dataclass(slots=True, eq=False)
class Prompted:
    """One prompt in the engine: its parameters and the course of each of its outputs. ids, tokenizer: where prompts
    are kept. Without parameters: all that a request embeds, with one course that has no end of its own."""

    params: SamplingParams | None
    courses: list[Course] = field(default_factory=list)
    ids: array[int] | None = None
    tokenizer: Tokenizer | None = None


@dataclass(slots=True, eq=False)
class Record:
    """status 0: no answer yet. compile_seconds: of what the output must be."""

    method: str
    arrived: float = field(default_factory=time.monotonic)
    created: float = field(default_factory=time.time)
    id: str = ""
    tenant: str = ""
    route: str = ""
    status: int = 0
    ended: float = 0.0
    model: str = ""
    prompts: list[Prompted] = field(default_factory=list)
    compile_seconds: float = 0.0

    @property
    def courses(self) -> Iterator[Course]:
        for prompted in self.prompts:
            yield from prompted.courses

    @property
    def asked(self) -> SamplingParams | None:
        """None before its first prompt, and for embeddings."""
        return self.prompts[-1].params if self.prompts else None

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.arrived


class Records:
    """By id, which the server mints. Those that had no prompt in the engine are not kept; one may have its first after
    its answer, which goes on in the background."""

    def __init__(self) -> None:
        self._open: dict[str, Record] = {}  # bound to a model and not ended, oldest first
        self._ended: dict[str, deque[Record]] = {}  # by tenant, newest first

    def begin(self, record: Record) -> None:
        self._open[record.id] = record

    def end(self, record: Record) -> None:
        if self._open.pop(record.id, None) is not None and record.prompts:
            self._keep(record)

    def prompted(self, record: Record, prompted: Prompted) -> None:
        record.prompts.append(prompted)
        if record.ended and len(record.prompts) == 1:
            self._keep(record)

    def _keep(self, record: Record) -> None:
        self._ended.setdefault(record.tenant, deque(maxlen=KEPT)).appendleft(record)

    def of(self, tenant: str) -> list[Record]:
        """Newest first, those that run before those that have ended."""
        running = [record for record in reversed(self._open.values()) if record.tenant == tenant and record.prompts]
        return [*running, *self._ended.get(tenant, ())]

    def find(self, tenant: str, request_id: str) -> Record | None:
        return next((record for record in self.of(tenant) if record.id == request_id), None)


def summary(record: Record) -> dict[str, Any]:
    """One line of a list: what it is and how far."""
    courses = list(record.courses)
    output, now = sum(course.output_tokens for course in courses), time.monotonic()
    begun = [course for course in courses if course.first]
    spent = sum((course.ended or now) - course.first for course in begun)
    return {
        "id": record.id,
        "object": "request",
        "created": int(record.created),
        "model": record.model,
        "route": record.route,
        "status": record.status or None,
        "state": _state(record, courses),
        "seconds": record.seconds,
        "first_token_seconds": min((course.first for course in begun), default=0.0) - record.arrived if begun else None,
        "prompt_tokens": sum(_first(prompted, "prompt_tokens") for prompted in record.prompts),
        "cached_tokens": sum(_first(prompted, "cached_tokens") for prompted in record.prompts),
        "computed_tokens": sum(course.computed for course in courses),
        "output_tokens": output,
        "tokens_per_second": (output - len(begun)) / spent if spent > 0 and output > len(begun) else None,
        "finish_reason": courses[-1].finish_reason if courses else None,
    }


def described(record: Record) -> dict[str, Any]:
    """All that is known of one request."""
    return summary(record) | {
        "prepare_seconds": min((course.begun for course in record.courses), default=record.arrived) - record.arrived,
        "sampling": None if record.asked is None else _sampling(record.asked),
        "structure": _structure(record),
        "choices": [_choice(course) for course in record.courses],
        "prompts": [_text(prompted) for prompted in record.prompts],
    }


def _first(prompted: Prompted, name: str) -> int:
    return int(getattr(prompted.courses[0], name)) if prompted.courses else 0


def _state(record: Record, courses: list[Course]) -> str:
    """Of what goes on in the engine, the furthest."""
    if record.ended and (record.asked is None or all(course.finish_reason for course in courses)):
        return "ended"
    if any(course.first for course in courses):
        return "decode"
    return "prefill" if any(course.computed for course in courses) else "queued"


def _choice(course: Course) -> dict[str, Any]:
    now = course.ended or time.monotonic()
    first = course.first or now
    return {
        "index": course.index,
        "prompt_tokens": course.prompt_tokens,
        "cached_tokens": course.cached_tokens,
        "computed_tokens": course.computed,
        "output_tokens": course.output_tokens,
        "queue_seconds": course.queued if course.first else None,
        "prefill_seconds": max(course.first - course.begun - course.queued, 0.0) if course.first else None,
        "decode_seconds": max(course.latest - first, 0.0),
        "longest_gap_seconds": course.longest_gap,
        "mask_seconds": course.mask_seconds,
        "drafts": course.drafts.proposed,
        "drafts_accepted": course.drafts.accepted,
        "acceptance_length": course.drafts.length if course.drafts.steps else None,
        "preemptions": course.preemptions,
        "seed": course.seed,
        "finish_reason": course.finish_reason,
        "stop_reason": course.stop_reason,
    }


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """What was asked, defaults left out."""
    shown = {}
    for each in fields(params):
        value = getattr(params, each.name)
        if each.name in _ALWAYS or (each.name not in _OURS and value != getattr(_PLAIN, each.name)):
            shown[each.name] = value
    return shown


def _structure(record: Record) -> dict[str, Any] | None:
    if record.asked is None or record.asked.structure is None:
        return None
    structure = record.asked.structure
    return {
        "kind": structure.kind,
        "characters": len(structure.source),
        "compile_seconds": record.compile_seconds,
        "mask_seconds": sum(course.mask_seconds for course in record.courses),
    }


def _text(prompted: Prompted) -> str | None:
    """The prompt as the model got it, special tokens and all."""
    if prompted.ids is None or prompted.tokenizer is None:
        return None
    return prompted.tokenizer.decode(prompted.ids.tolist(), skip_special=False)
