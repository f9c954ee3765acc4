"""One output as a message of blocks, whole or event by event.

message_start  (content_block_start  content_block_delta*  content_block_stop)*  message_delta  message_stop
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from octavo.server.call import Choice, Usage
from octavo.server.openai.conversation import Conversation
from octavo.text.dialects.dialect import Call, Part, Said

Event = dict[str, Any]


class MessageWriter:
    """hides_thoughts: they are told without their text. limit: the max_tokens that was asked for."""

    def __init__(self, conversation: Conversation, *, model: str, limit: int, hides_thoughts: bool) -> None:
        self._conversation = conversation
        self._model = model
        self._limit = limit
        self._hides_thoughts = hides_thoughts
        self._id = f"msg_{secrets.token_hex(12)}"
        self._index = -1  # of the latest block
        self._open: str | None = None  # its type, while it may go on
        self._digest = hashlib.sha256()  # of the thoughts of the open block

    def whole(self, choice: Choice, usage: Usage) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        for event in [*self._parts(self._conversation.heard(choice, choice.text)), *self._close()]:
            if event["type"] == "content_block_start":
                blocks.append(event["content_block"])
            elif event["type"] == "content_block_delta":
                _grow(blocks[-1], event["delta"])
        return self._message(blocks, usage) | self._ending(choice)

    def start(self, usage: Usage) -> list[Event]:
        return [{"type": "message_start", "message": self._message([], usage)}, {"type": "ping"}]

    def more(self, choice: Choice, text: str) -> list[Event]:
        """Events of this text, which the choice has already."""
        return list(self._parts(self._conversation.heard(choice, text)))

    def end(self, choice: Choice, usage: Usage) -> list[Event]:
        ending = {"type": "message_delta", "delta": self._ending(choice), "usage": _spelled(usage)}
        return [*self._close(), ending, {"type": "message_stop"}]

    def _parts(self, parts: Sequence[Part]) -> Iterator[Event]:
        for part in parts:
            if isinstance(part, Call):
                yield from self._called(part)
            elif part.reasoning:
                yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
                self._digest.update(part.text.encode())
                if not self._hides_thoughts:
                    yield self._delta({"type": "thinking_delta", "thinking": part.text})
            else:
                yield from self._said(part)

    def _said(self, part: Said) -> Iterator[Event]:
        yield from self._begin({"type": "text", "text": ""})
        yield self._delta({"type": "text_delta", "text": part.text})

    def _called(self, call: Call) -> Iterator[Event]:
        yield from self._close()
        block = {"type": "tool_use", "id": self._conversation.call_id(), "name": call.name, "input": {}}
        yield from self._begin(block)
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        yield from self._close()

    def _begin(self, block: dict[str, Any]) -> Iterator[Event]:
        """Unless a block of that type is open."""
        if self._open == block["type"]:
            return
        yield from self._close()
        self._open = block["type"]
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterator[Event]:
        """Thoughts are signed with their digest, which clients send back and nobody checks."""
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": self._digest.hexdigest()})
            self._digest = hashlib.sha256()
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = None

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _message(self, blocks: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _spelled(usage),
        }

    def _ending(self, choice: Choice) -> dict[str, Any]:
        reason, sequence = "end_turn", None
        if self._conversation.ended_in_calls(choice):
            reason = "tool_use"
        elif choice.finish_reason == "length":
            reason = "max_tokens" if len(choice.token_ids) >= self._limit else "model_context_window_exceeded"
        elif isinstance(choice.stop_reason, str):
            reason, sequence = "stop_sequence", choice.stop_reason
        return {"stop_reason": reason, "stop_sequence": sequence}


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta:
        case {"text": text}:
            block["text"] += text
        case {"thinking": text}:
            block["thinking"] += text
        case {"signature": signature}:
            block["signature"] = signature
        case {"partial_json": arguments}:
            block["input"] = msgspec.json.decode(arguments)


def _spelled(usage: Usage) -> dict[str, Any]:
    """Prompt tokens that were computed, and those that came from the cache, which keeps every prompt by itself."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }
