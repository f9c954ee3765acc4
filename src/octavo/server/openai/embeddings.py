"""POST /v1/embeddings: one vector an input, of a model that was loaded to embed."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from octavo.errors import RequestError
from octavo.server.call import Call, naming
from octavo.server.endpoint import Endpoint
from octavo.server.exchange import Exchange
from octavo.server.openai.fields import read
from octavo.server.openai.shapes import read_prompts

MAX_INPUTS = 2048
AT_ONCE = 32  # inputs in the engine


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    model: str
    input: Any
    encoding_format: str = "float"
    dimensions: int | None = None


class EmbeddingEndpoint(Endpoint):
    shape = EmbeddingRequest

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, EmbeddingRequest)
        if asked.encoding_format not in ("float", "base64"):
            raise RequestError(
                f"encoding_format is float or base64, not {asked.encoding_format!r}", param="encoding_format"
            )
        outputs = []
        with naming(prompt="input"):
            prompts = read_prompts(asked.input, most=MAX_INPUTS)
            for start in range(0, len(prompts), AT_ONCE):
                outputs += await call.embed(prompts[start : start + AT_ONCE])
        data = [
            {"object": "embedding", "index": index, "embedding": _spelled(output.embedding, asked)}
            for index, output in enumerate(outputs)
        ]
        tokens = sum(len(output.prompt_token_ids) for output in outputs)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        await exchange.answer({"object": "list", "data": data, "model": call.llm.info.name, "usage": usage})


def _spelled(vector: Sequence[float], asked: EmbeddingRequest) -> list[float] | str:
    """base64: of float32, little endian."""
    shown = first_numbers(vector, asked.dimensions)
    if asked.encoding_format == "float":
        return list(shown)
    return base64.b64encode(array("f", shown).tobytes()).decode()


def first_numbers(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """The first numbers alone, at length 1 again: for models that were trained to be cut."""
    if dimensions is None:
        return vector
    if not 0 < dimensions <= len(vector):
        raise RequestError(f"dimensions is 1 to {len(vector)} for this model, not {dimensions}", param="dimensions")
    cut = vector[:dimensions]
    length = math.sqrt(math.fsum(value * value for value in cut)) or 1.0
    return [value / length for value in cut]
