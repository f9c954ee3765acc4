"""Log-probabilities in OpenAI's two shapes. A token is shown as the text of its own bytes, and as the bytes.

Bytes that are no text by themselves are shown as `bytes:\\xe6\\x80`, so that two different tokens never share a key.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from octavo.engine.outputs import Logprob, PositionLogprobs
from octavo.text.tokenizer import Tokenizer

LEAST = -9999.0  # JSON has no infinity


def token_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class LogprobWriter:
    """Shapes for one tokenizer. `top`: how many alternatives were asked for."""

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self._pieces = tokenizer.pieces
        self._top = top

    def chat(self, positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
        """`choices[].logprobs` of a chat completion."""
        content = []
        for position in positions:
            chosen, *_ = position.items()
            top = [self._entry(*entry) for entry in self._alternatives(position)]
            content.append(self._entry(*chosen) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def text(
        self, positions: Sequence[PositionLogprobs | None], ids: Sequence[int], offsets: Sequence[int]
    ) -> dict[str, Any]:
        """`choices[].logprobs` of a completion; the first position of a prompt has none."""
        shown = [self._text(token_id) for token_id in ids]
        own = [
            None if position is None else _finite(position[token_id])
            for position, token_id in zip(positions, ids, strict=True)
        ]
        top = [None if position is None else self._top_texts(position) for position in positions]
        return {"tokens": shown, "token_logprobs": own, "top_logprobs": top, "text_offset": list(offsets)}

    def prompt(self, positions: Sequence[PositionLogprobs | None]) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: per prompt token a mapping from id."""
        return [
            None
            if position is None
            else {
                str(token_id): {"logprob": _finite(entry), "rank": entry.rank, "decoded_token": self._text(token_id)}
                for token_id, entry in position.items()
            }
            for position in positions
        ]

    def _bytes(self, token_id: int) -> bytes:
        return self._pieces.piece(token_id, skip_special=False)

    def _text(self, token_id: int) -> str:
        return token_text(self._bytes(token_id))

    def _entry(self, token_id: int, entry: Logprob) -> dict[str, Any]:
        data = self._bytes(token_id)
        return {"token": token_text(data), "logprob": _finite(entry), "bytes": list(data)}

    def _alternatives(self, position: PositionLogprobs) -> list[tuple[int, Logprob]]:
        ranked = sorted(position.items(), key=lambda item: item[1].rank)
        return [item for item in ranked if item[1].rank <= self._top]

    def _top_texts(self, position: PositionLogprobs) -> dict[str, float]:
        """Best first; of two tokens with the same spelling the better one."""
        shown: dict[str, float] = {}
        for token_id, entry in self._alternatives(position):
            shown.setdefault(self._text(token_id), _finite(entry))
        return shown


class Offsets:
    """Where each token's text begins, in characters of the text so far. opening: the text begins with the prompt's."""

    def __init__(self, tokenizer: Tokenizer, *, opening: bool) -> None:
        self._pieces = tokenizer.pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = opening
        self._at = 0

    def of(self, ids: Sequence[int]) -> list[int]:
        places = []
        for token_id in ids:
            places.append(self._at)
            piece = self._pieces.piece(token_id)
            if self._first and token_id not in self._pieces.hidden:
                piece, self._first = self._pieces.begin(piece)
            self._at += len(self._decoder.decode(piece))
        return places


def _finite(entry: Logprob) -> float:
    return max(entry.logprob, LEAST)
