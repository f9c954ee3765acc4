"""Questions of a decision: how each is put to the model, which words may answer it, and how its answer is spelled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import RequestError
from octavo.server.openai.responses.items import read_text

MAX_QUESTIONS = 400
MAX_LABELS = 255  # of one question
MAX_ALL = 4096  # labels of a request
LEAST = -9999.0  # JSON has no infinity


@dataclass(frozen=True, slots=True)
class Likely:
    """A label among those of its question. logprob: that the model answers with it; the probabilities add up to 1."""

    probability: float
    logprob: float

    def shown(self) -> dict[str, float]:
        return {"probability": self.probability, "logprob": max(self.logprob, LEAST)}


Spell = Callable[[Sequence[Likely]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """text: what is asked, behind the input. labels: what may be answered, at least two, all different."""

    kind: str
    name: str | None
    text: str
    labels: tuple[str, ...]
    spell: Spell

    def answer(self, likely: Sequence[Likely]) -> dict[str, Any]:
        return {"type": self.kind, "name": self.name, **self.spell(likely)}


def read_questions(given: Sequence[Mapping[str, Any]]) -> list[Question]:
    """Raises RequestError, UnsupportedError that name the question."""
    if not 0 < len(given) <= MAX_QUESTIONS:
        raise RequestError(f"questions: 1 to {MAX_QUESTIONS} questions, not {len(given)}", param="questions")
    questions = [_question(question, f"questions[{place}]") for place, question in enumerate(given)]
    labels = sum(len(question.labels) for question in questions)
    if labels > MAX_ALL:
        raise RequestError(f"questions: at most {MAX_ALL} possible answers in all, not {labels}", param="questions")
    return questions


def _question(given: Mapping[str, Any], where: str) -> Question:
    kind, name = given.get("type"), given.get("name")
    if name is not None and not isinstance(name, str):
        raise RequestError(f"{where}.name is text", code="invalid_type", param=f"{where}.name")
    reader = {"predicate": _predicate, "choice": _choice, "score": _score}.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise RequestError(f"{where}.type is predicate, choice or score, not {kind!r}", param=f"{where}.type")
    if "instructions" not in given:
        raise RequestError(f"{where}.instructions is required", code="missing_field", param=f"{where}.instructions")
    known = {"predicate": (), "choice": ("choices",), "score": ("levels",)}[str(kind)]
    for field in given.keys() - {"type", "name", "instructions", *known}:
        raise RequestError(f"unknown field {where}.{field}", code="unknown_field", param=f"{where}.{field}")
    asked = read_text(given["instructions"], f"{where}.instructions")
    text, labels, spell = reader(given, asked, where)
    return Question(str(kind), name, text, labels, spell)


def _predicate(given: Mapping[str, Any], asked: str, where: str) -> tuple[str, tuple[str, ...], Spell]:
    def spell(likely: Sequence[Likely]) -> dict[str, Any]:
        yes, no = likely
        both = [{"value": True, **yes.shown()}, {"value": False, **no.shown()}]
        return {"probability": yes.probability, "probabilities": both}

    return f"{asked}\n\nIs this true? Answer Yes or No.", ("Yes", "No"), spell


def _choice(given: Mapping[str, Any], asked: str, where: str) -> tuple[str, tuple[str, ...], Spell]:
    options = _options(given, "choices", "value", (str, bool), where)
    values = [option["value"] for option in options]
    labels = tuple(str(value).lower() if isinstance(value, bool) else value for value in values)

    def spell(likely: Sequence[Likely]) -> dict[str, Any]:
        best = max(range(len(values)), key=lambda place: likely[place].logprob)
        shown = [{"value": value, **one.shown()} for value, one in zip(values, likely, strict=True)]
        return {"choice": values[best], "confidence": likely[best].probability, "probabilities": shown}

    listed = _listed(labels, options)
    return f"{asked}\n\nThe choices:\n{listed}\nAnswer with one of them.", _different(labels, f"{where}.choices"), spell


def _score(given: Mapping[str, Any], asked: str, where: str) -> tuple[str, tuple[str, ...], Spell]:
    """A level's value is its place, from 0; the score is what is to be expected of it."""
    options = _options(given, "levels", "label", (str,), where)
    labels = tuple(option["label"] for option in options)

    def spell(likely: Sequence[Likely]) -> dict[str, Any]:
        shown = [
            {"label": label, "value": value, **one.shown()}
            for value, (label, one) in enumerate(zip(labels, likely, strict=True))
        ]
        score = math.fsum(value * one.probability for value, one in enumerate(likely))
        return {"score": score, "confidence": max(one.probability for one in likely), "probabilities": shown}

    listed = _listed(labels, options)
    text = f"{asked}\n\nThe levels, from the lowest to the highest:\n{listed}\nAnswer with one of them."
    return text, _different(labels, f"{where}.levels"), spell


def _options(
    given: Mapping[str, Any], field: str, key: str, kinds: tuple[type, ...], where: str
) -> list[Mapping[str, Any]]:
    where = f"{where}.{field}"
    options = given.get(field)
    if not isinstance(options, list) or not 2 <= len(options) <= MAX_LABELS:
        raise RequestError(f"{where}: a list of 2 to {MAX_LABELS}", param=where)
    for place, option in enumerate(options):
        value = option.get(key) if isinstance(option, Mapping) else None
        if not isinstance(value, kinds) or value == "":
            raise RequestError(
                f"{where}[{place}].{key} is required", code="missing_field", param=f"{where}[{place}].{key}"
            )
        if not isinstance(option.get("description", ""), str):
            raise RequestError(f"{where}[{place}].description is text", param=f"{where}[{place}].description")
    return options


def _listed(labels: Sequence[str], options: Sequence[Mapping[str, Any]]) -> str:
    shown = [f"- {label}" for label in labels]
    told = [option.get("description") for option in options]
    return "\n".join(f"{line}: {more}" if more else line for line, more in zip(shown, told, strict=True))


def _different(labels: tuple[str, ...], where: str) -> tuple[str, ...]:
    if len(set(labels)) < len(labels):
        raise RequestError(f"{where}: two of them read the same", param=where)
    return labels
