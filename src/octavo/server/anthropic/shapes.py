"""Bodies of the Messages protocol as structs. A block of a kind that is no text to a model is known, to be refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from octavo.server.openai.fields import Accepted


class TextBlock(msgspec.Struct, tag="text", tag_field="type"):
    text: str


class ThinkingBlock(msgspec.Struct, tag="thinking", tag_field="type"):
    thinking: str


class RedactedThinkingBlock(msgspec.Struct, tag="redacted_thinking", tag_field="type"):
    pass


class ToolUseBlock(msgspec.Struct, tag="tool_use", tag_field="type"):
    id: str
    name: str
    input: dict[str, Any]


class ImageBlock(msgspec.Struct, tag="image", tag_field="type"):
    pass


class DocumentBlock(msgspec.Struct, tag="document", tag_field="type"):
    pass


class SearchResultBlock(msgspec.Struct, tag="search_result", tag_field="type"):
    pass


Shown = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(msgspec.Struct, tag="tool_result", tag_field="type"):
    tool_use_id: str
    content: str | list[Shown] | None = None


Block = Shown | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(msgspec.Struct):
    name: str
    input_schema: dict[str, Any] = msgspec.field(default_factory=dict)
    description: str | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """What a prompt is made of."""

    model: str
    messages: list[Message]
    system: str | list[TextBlock] = ""
    tools: list[Tool] = msgspec.field(default_factory=list)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: int
    stream: bool = False
    stop_sequences: list[str] = msgspec.field(default_factory=list)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


def _anything(value: Any) -> bool:
    return True


# Fields without effect here, as in openai/fields.py. Prefixes are cached by themselves, whatever `cache_control` says.
ACCEPTED: Accepted = {
    "metadata": lambda value: isinstance(value, Mapping),
    "cache_control": _anything,
    "context_management": _anything,
    "diagnostics": _anything,
    "inference_geo": _anything,
    "service_tier": lambda value: value in ("auto", "standard_only"),
    "speed": lambda value: value == "standard",
    "user_profile_id": _anything,
    "workspace_id": _anything,
    "container": lambda value: False,
    "mcp_servers": lambda value: value == [],
}
