"""Parts of an output as items, and the events that say how they grow.

    reasoning    item added, text part added, deltas, text done, part done, item done
    message      the same, with the text of an answer
    function     item added, its arguments in one delta, arguments done, item done

Every event has the next sequence number; what an item holds when it is done is what its deltas add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from octavo.server.openai.responses.items import Item, new_id
from octavo.text.dialects.dialect import Call, Part

Event = dict[str, Any]
Logprobs = list[dict[str, Any]]


class Writer:
    """items: what was said so far, the last of them perhaps open."""

    def __init__(self, call_id: Callable[[], str]) -> None:
        self.items: list[Item] = []
        self._call_id = call_id
        self._number = 0
        self._open: Item | None = None

    def event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def take(self, parts: Sequence[Part], logprobs: Logprobs | None) -> Iterator[Event]:
        """logprobs: of the tokens behind these parts, where they were asked for: they go to the answer's text."""
        for part in parts:
            if isinstance(part, Call):
                yield from self.close()
                yield from self._call(part)
                continue
            kind = "reasoning" if part.reasoning else "message"
            if self._open is None or self._open["type"] != kind:
                yield from self.close()
                yield from self._begin(kind, logprobs is not None)
            yield self._grow(part.text, logprobs or [])
            logprobs = None if logprobs is None else []

    def close(self, status: str = "completed") -> Iterator[Event]:
        """Ends the open item, if any."""
        item, self._open = self._open, None
        if item is None:
            return
        (part,) = item["content"]
        item["status"] = status
        at = self._place(item)
        if item["type"] == "reasoning":
            yield self.event("response.reasoning_text.done", **at, content_index=0, text=part["text"])
        else:
            logprobs = part.get("logprobs", [])
            yield self.event("response.output_text.done", **at, content_index=0, text=part["text"], logprobs=logprobs)
        yield self.event("response.content_part.done", **at, content_index=0, part=dict(part))
        yield self._done(item)

    def _begin(self, kind: str, with_logprobs: bool) -> Iterator[Event]:
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        item: Item = {"id": new_id("rs"), "type": kind, "summary": [], "content": [], "status": "in_progress"}
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": []} | ({"logprobs": []} if with_logprobs else {})
            item = {"id": new_id("msg"), "type": kind, "role": "assistant", "content": [], "status": "in_progress"}
        self.items.append(item)
        yield self._added(item)
        item["content"] = [part]
        self._open = item
        yield self.event("response.content_part.added", **self._place(item), content_index=0, part=dict(part))

    def _grow(self, text: str, logprobs: Logprobs) -> Event:
        item = self._open
        assert item is not None
        (part,) = item["content"]
        part["text"] += text
        if item["type"] == "reasoning":
            return self.event("response.reasoning_text.delta", **self._place(item), content_index=0, delta=text)
        if "logprobs" in part:
            part["logprobs"] = part["logprobs"] + logprobs
        at = self._place(item)
        return self.event("response.output_text.delta", **at, content_index=0, delta=text, logprobs=logprobs)

    def _call(self, call: Call) -> Iterator[Event]:
        named = {"call_id": self._call_id(), "name": call.name}
        item: Item = {"id": new_id("fc"), "type": "function_call", **named, "arguments": "", "status": "in_progress"}
        self.items.append(item)
        yield self._added(item)
        at = self._place(item)
        yield self.event("response.function_call_arguments.delta", **at, delta=call.arguments)
        item |= {"arguments": call.arguments, "status": "completed"}
        yield self.event("response.function_call_arguments.done", **at, name=call.name, arguments=call.arguments)
        yield self._done(item)

    def _added(self, item: Item) -> Event:
        return self.event("response.output_item.added", output_index=len(self.items) - 1, item=dict(item))

    def _done(self, item: Item) -> Event:
        return self.event("response.output_item.done", output_index=len(self.items) - 1, item=dict(item))

    def _place(self, item: Item) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self.items) - 1}
