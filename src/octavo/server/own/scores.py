"""POST /rerank and /score, in vLLM's shapes: the cosine between the vectors of a model that embeds."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any

import msgspec

from octavo.errors import RequestError, UnsupportedError
from octavo.server.call import Call, naming
from octavo.server.endpoint import Endpoint
from octavo.server.exchange import Exchange
from octavo.server.openai.fields import Accepted, read

MAX_TEXTS = 1024
AT_ONCE = 32  # texts in the engine


class Document(msgspec.Struct):
    text: str


class RerankRequest(msgspec.Struct, kw_only=True):
    query: str
    documents: list[str | Document]
    model: str = ""
    top_n: int | None = None
    return_documents: bool = True


class ScoreRequest(msgspec.Struct, kw_only=True):
    """text_1 and text_2, or queries and documents. One text stands beside every one of the other side."""

    model: str = ""
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None


ACCEPTED: Accepted = {"user": lambda value: isinstance(value, str)}


class RerankEndpoint(Endpoint):
    """Documents in falling order of their scores, equal ones as they came."""

    shape = RerankRequest

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, RerankRequest, ACCEPTED)
        texts = [one if isinstance(one, str) else one.text for one in asked.documents]
        _check(texts, "documents")
        _check([asked.query], "query")
        if asked.top_n is not None and asked.top_n < 1:
            raise RequestError(f"top_n must be at least 1, not {asked.top_n}", param="top_n")
        vectors = Vectors(call)
        (query,), rows = await vectors.of([asked.query], "query"), await vectors.of(texts, "documents")
        scores = [cosine(query, row) for row in rows]
        order = sorted(range(len(scores)), key=lambda place: -scores[place])[: asked.top_n]
        shown = [{"document": {"text": texts[place]}} if asked.return_documents else {} for place in order]
        results = [
            {"index": place, "relevance_score": scores[place]} | more for place, more in zip(order, shown, strict=True)
        ]
        head = {"id": f"rerank-{secrets.token_hex(12)}", "model": call.llm.info.name}
        await exchange.answer(head | {"usage": vectors.usage, "results": results})


class ScoreEndpoint(Endpoint):
    shape = ScoreRequest

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        names, left, right = _sides(read(body, ScoreRequest, ACCEPTED))
        vectors = Vectors(call)
        rows, columns = await vectors.of(left, names[0]), await vectors.of(right, names[1])
        rows, columns = _stretched(rows, len(columns)), _stretched(columns, len(rows))
        data = [
            {"index": place, "object": "score", "score": cosine(row, column)}
            for place, (row, column) in enumerate(zip(rows, columns, strict=True))
        ]
        head = {"id": f"score-{secrets.token_hex(12)}", "object": "list", "created": int(time.time())}
        await exchange.answer(head | {"model": call.llm.info.name, "data": data, "usage": vectors.usage})


class Vectors:
    """Of texts, a few at a time, and what they cost."""

    def __init__(self, call: Call) -> None:
        """Raises UnsupportedError for a model that generates."""
        info = call.llm.info
        if info.task != "embed":
            raise UnsupportedError(
                f"{info.name} generates: scores need a model that embeds, an encoder or one served with --task embed",
                param="model",
            )
        self._call = call
        self._tokens = 0

    async def of(self, texts: Sequence[str], field: str) -> list[list[float]]:
        vectors = []
        for start in range(0, len(texts), AT_ONCE):
            with naming(prompt=field):
                outputs = await self._call.embed(texts[start : start + AT_ONCE])
            self._tokens += sum(len(output.prompt_token_ids) for output in outputs)
            vectors += [output.embedding for output in outputs]
        return vectors

    @property
    def usage(self) -> dict[str, int]:
        return {"prompt_tokens": self._tokens, "total_tokens": self._tokens}


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    """In [-1, 1]; 0 beside a vector without length."""
    lengths = math.sqrt(math.fsum(map(mul, left, left)) * math.fsum(map(mul, right, right)))
    return max(-1.0, min(1.0, math.fsum(map(mul, left, right)) / lengths)) if lengths else 0.0


def _sides(asked: ScoreRequest) -> tuple[tuple[str, str], list[str], list[str]]:
    """(names of the fields, texts of each). Raises RequestError."""
    given = {"text_1": asked.text_1, "text_2": asked.text_2, "queries": asked.queries, "documents": asked.documents}
    sides = {name: [value] if isinstance(value, str) else value for name, value in given.items() if value is not None}
    if tuple(sides) not in (("text_1", "text_2"), ("queries", "documents")):
        raise RequestError(
            "text_1 and text_2, or queries and documents, are required", param="text_1", code="missing_field"
        )
    for name, texts in sides.items():
        _check(texts, name)
    (first, left), (second, right) = sides.items()
    if len(left) != len(right) and 1 not in (len(left), len(right)):
        raise RequestError(f"{first} and {second}: as many texts, or one beside many", param=second)
    return (first, second), left, right


def _check(texts: Sequence[str], field: str) -> None:
    if not 0 < len(texts) <= MAX_TEXTS:
        raise RequestError(f"{field}: 1 to {MAX_TEXTS} texts, not {len(texts)}", param=field)
    if not all(texts):
        raise RequestError(f"{field}: a text is empty", param=field)


def _stretched(rows: list[list[float]], count: int) -> list[list[float]]:
    return rows * count if len(rows) == 1 else rows
