"""One response: from a running generation to events, and to the response as a whole."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from octavo.engine.outputs import StreamDelta
from octavo.errors import OctavoError
from octavo.server.call import Outputs, Usage
from octavo.server.openai.conversation import Conversation
from octavo.server.openai.logprobs import LogprobWriter
from octavo.server.openai.responses.items import new_id
from octavo.server.openai.responses.shapes import LOGPROBS, Functions, ResponseRequest
from octavo.server.openai.responses.writer import Event, Logprobs, Writer
from octavo.text.dialects.dialect import Part, Said


class Answer:
    """response: as it is answered, always up to date but for the items that are being written."""

    def __init__(self, asked: ResponseRequest, conversation: Conversation, functions: Functions) -> None:
        call = conversation.generation.call
        self._conversation = conversation
        self._writer = Writer(conversation.call_id)
        self._spent = _Spent()
        self._logprobs = (
            LogprobWriter(call.llm.tokenizer, asked.top_logprobs or 0) if LOGPROBS in asked.include else None
        )
        self._unsaid: Logprobs = []
        self.response = _head(asked, call.llm.info.name, functions)

    async def events(self, outputs: Outputs) -> AsyncGenerator[Event, None]:
        """All but the last, which `ended` makes. A fault of the engine makes the response a failed one."""
        writer, response = self._writer, self.response
        if response["background"]:
            yield writer.event("response.created", response=dict(response))
            yield writer.event("response.queued", response=dict(response))
            response["status"] = "in_progress"
        else:
            yield writer.event("response.created", response=dict(response))
        yield writer.event("response.in_progress", response=dict(response))
        try:
            async with aclosing(outputs.deltas()) as deltas:
                async for choice, delta in deltas:
                    parts = self._conversation.heard(choice, delta.text)
                    self._spent.take(delta, parts)
                    for event in writer.take(parts, self._shown(delta, parts)):
                        yield event
        except OctavoError as error:
            for event in writer.close("incomplete"):
                yield event
            self._end("failed", outputs.usage)
            self.fail(error)
            return
        (choice,) = outputs.choices
        cut = choice.finish_reason == "length"
        for event in writer.close("incomplete" if cut else "completed"):
            yield event
        details = {"incomplete_details": {"reason": "max_output_tokens"}} if cut else {"completed_at": int(time.time())}
        self._end("incomplete" if cut else "completed", outputs.usage, **details)

    def ended(self) -> Event:
        """The event that ends a stream."""
        status = self.response["status"]
        if status == "cancelled":
            return self._writer.event("error", code="cancelled", message="the response was cancelled", param=None)
        return self._writer.event(f"response.{status}", response=self.response)

    def fail(self, error: OctavoError) -> None:
        self.response |= {"status": "failed", "error": {"code": "server_error", "message": error.message}}

    def cancelled(self) -> None:
        for _ in self._writer.close("incomplete"):
            pass
        self.response |= {"status": "cancelled", "output": self._writer.items}

    def _end(self, status: str, usage: Usage, **more: Any) -> None:
        shown = {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": self._spent.reasoning},
            "total_tokens": usage.prompt + usage.output,
        }
        self.response |= {"status": status, "output": self._writer.items, "usage": shown, **more}

    def _shown(self, delta: StreamDelta, parts: Sequence[Part]) -> Logprobs | None:
        """Of the tokens behind these parts, those whose text was held back until now included."""
        if self._logprobs is None:
            return None
        self._unsaid += self._logprobs.chat(delta.logprobs or ())["content"]
        if not parts:
            return []
        shown, self._unsaid = self._unsaid, []
        return shown if any(isinstance(part, Said) and not part.reasoning for part in parts) else []


class _Spent:
    """How many tokens went into reasoning. A delta that holds the end of it is shared out by characters."""

    def __init__(self) -> None:
        self.reasoning = 0
        self._unheard = 0

    def take(self, delta: StreamDelta, parts: Sequence[Part]) -> None:
        self._unheard += len(delta.token_ids)
        if not parts:
            return
        size = sum(len(part.text) if isinstance(part, Said) else len(part.arguments) for part in parts)
        thought = sum(len(part.text) for part in parts if isinstance(part, Said) and part.reasoning)
        self.reasoning += round(self._unheard * thought / max(size, 1))
        self._unheard = 0


def _head(asked: ResponseRequest, model: str, functions: Functions) -> dict[str, Any]:
    """The response before anything was said."""
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in functions.tools]
    head = {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued" if asked.background else "in_progress",
        "background": asked.background,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata,
        "model": model,
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key or None,
        "reasoning": {"effort": asked.reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": asked.store,
        "temperature": asked.temperature,
        "text": {"format": asked.text.format or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice,
        "tools": tools,
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": asked.top_p,
        "truncation": "disabled",
        "usage": None,
    }
    return head | ({"skipped_tools": functions.skipped} if functions.skipped else {})
