"""A Messages body as a chat request: blocks as messages, results of tools as messages of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.errors import RequestError, UnsupportedError
from octavo.server.anthropic.shapes import (
    Block,
    CountRequest,
    DocumentBlock,
    ImageBlock,
    MessagesRequest,
    SearchResultBlock,
    Shown,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from octavo.server.openai.shapes import ChatRequest

BILLING = "x-anthropic-billing-header:"  # a line that changes with every request, in front of the system prompt
_KINDS = {ImageBlock: "images", DocumentBlock: "documents", SearchResultBlock: "search results"}


def chat_request(asked: CountRequest) -> ChatRequest:
    """Raises RequestError, UnsupportedError that name the field."""
    choice = asked.tool_choice or ToolChoice("auto")
    request = ChatRequest(
        model=asked.model,
        messages=_messages(asked),
        tools=[_tool(tool, f"tools[{place}]") for place, tool in enumerate(asked.tools)],
        tool_choice=_choice(choice),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        chat_template_kwargs=_thinking(asked),
        reasoning_effort=None if asked.output_config is None else asked.output_config.effort,
        response_format=_format(asked),
        thinking_budget=None if asked.thinking is None else asked.thinking.budget_tokens,
    )
    if isinstance(asked, MessagesRequest):
        request.max_tokens = asked.max_tokens
        request.stream = asked.stream
        request.stop = asked.stop_sequences
        request.temperature, request.top_p, request.top_k = asked.temperature, asked.top_p, asked.top_k
    return request


def _messages(asked: CountRequest) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    for text in _system(asked.system):
        _say(written, "system", text)
    for place, message in enumerate(asked.messages):
        where = f"messages[{place}]"
        blocks = [TextBlock(message.content)] if isinstance(message.content, str) else message.content
        if not blocks and message.role != "assistant":  # an answer may have been empty, and comes back so
            raise RequestError(f"{where}.content is empty", param=f"{where}.content")
        if message.role == "assistant":
            written.append(_turn(blocks, where))
        else:
            _write(written, _speaker(written, message.role), blocks, where)
    if asked.messages and asked.messages[-1].role == "assistant":
        raise UnsupportedError(
            "messages: the last one is the assistant's, and an answer that was begun is not continued", param="messages"
        )
    return written


def _system(system: str | Sequence[TextBlock]) -> list[str]:
    texts = [system] if isinstance(system, str) else [block.text for block in system]
    kept = [text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING) else text for text in texts]
    return [text for text in kept if text]


def _speaker(written: Sequence[dict[str, Any]], role: str) -> str:
    """Templates know a system prompt in front alone: what comes later is a part of the user's turn."""
    begun = any(message["role"] != "system" for message in written)
    return "user" if role == "system" and begun else role


def _say(written: list[dict[str, Any]], role: str, text: str) -> None:
    """Texts of one role that follow each other are one message: templates ask for turns."""
    part = {"type": "text", "text": text}
    if written and written[-1]["role"] == role:
        written[-1]["content"].append(part)
    else:
        written.append({"role": role, "content": [part]})


def _write(written: list[dict[str, Any]], role: str, blocks: Sequence[Block], where: str) -> None:
    for place, block in enumerate(blocks):
        at = f"{where}.content[{place}]"
        if isinstance(block, ToolResultBlock) and role == "user":
            content = [block.content] if isinstance(block.content, str) else block.content or []
            texts = [one if isinstance(one, str) else _text(one, f"{at}.content[{n}]") for n, one in enumerate(content)]
            written.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": "\n".join(texts)})
        else:
            _say(written, role, _text(block, at))


def _turn(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    """One message of the assistant. What was said is joined by nothing: it was cut by calls and thoughts alone."""
    said, thoughts, calls = "", "", []
    for place, block in enumerate(blocks):
        if isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif isinstance(block, ThinkingBlock):
            thoughts += block.thinking
        elif isinstance(block, (TextBlock, *_KINDS, ToolResultBlock)):
            said += _text(block, f"{where}.content[{place}]")
    turn: dict[str, Any] = {"role": "assistant", "content": said}
    return turn | ({"reasoning_content": thoughts} if thoughts else {}) | ({"tool_calls": calls} if calls else {})


def _text(block: Block | Shown, where: str) -> str:
    if isinstance(block, TextBlock):
        return block.text
    kind = next((name for shape, name in _KINDS.items() if isinstance(block, shape)), None)
    if kind is not None:
        raise UnsupportedError(f"{where}: {kind} are not supported, only text", param=where)
    name = block.__struct_config__.tag
    raise RequestError(f"{where}: no {name} block stands in a message of this role", param=where)


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise UnsupportedError(f"{where}: tools of type {tool.type!r} are not supported", param=f"{where}.type")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Any:
    if choice.type == "any":
        return "required"
    if choice.type == "tool":
        if choice.name is None:
            raise RequestError("tool_choice.name is required", code="missing_field", param="tool_choice.name")
        return {"type": "function", "function": {"name": choice.name}}
    return choice.type


def _thinking(asked: CountRequest) -> dict[str, Any]:
    """What templates that know two modes are told, under either name; who asks for no thinking gets none."""
    thinks = asked.thinking is not None and asked.thinking.type != "disabled"
    return {"enable_thinking": thinks, "thinking": thinks}


def _format(asked: CountRequest) -> Any:
    stated = asked.output_format or (None if asked.output_config is None else asked.output_config.format)
    return None if stated is None else {"type": "json_schema", "json_schema": {"schema": stated.schema}}
