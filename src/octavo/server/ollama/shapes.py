"""Bodies of Ollama's protocol as structs, and what of their fields is accepted without effect.

The context of this server is fixed and a prompt is never cut, so options that size a context or a machine ask nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.server.openai.fields import Accepted


class Options(msgspec.Struct, kw_only=True):
    """Defaults of temperature, top_k and top_p are Ollama's. num_predict below 0: to the end of the context."""

    num_predict: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] = ()  # type: ignore[assignment]
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class Asked(msgspec.Struct, kw_only=True):
    """What chat and generate share."""

    stream: bool = True
    format: Any = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    think: bool | str | None = None
    logprobs: bool = False
    top_logprobs: int | None = None


class Function(msgspec.Struct):
    name: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class ToolCall(msgspec.Struct):
    function: Function
    id: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatBody(Asked, kw_only=True):
    messages: list[Message] = msgspec.field(default_factory=list)
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)


class GenerateBody(Asked, kw_only=True):
    prompt: str = ""
    system: str = ""
    raw: bool = False


class EmbedBody(msgspec.Struct, kw_only=True):
    input: str | list[str]
    dimensions: int | None = None


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    prompt: str


class ShowBody(msgspec.Struct, kw_only=True):
    pass


def _anything(value: Any) -> bool:
    return True


_NAMES: Accepted = {"model": _anything, "name": _anything}  # read with the model, before anything else
ACCEPTED: Accepted = {
    **_NAMES,
    "keep_alive": _anything,
    "images": lambda value: value == [],
    "suffix": lambda value: value == "",
    "template": lambda value: value == "",
    "context": lambda value: value == [],
}
EMBED_ACCEPTED: Accepted = {**_NAMES, "keep_alive": _anything, "truncate": _anything, "options": _anything}
SHOW_ACCEPTED: Accepted = {**_NAMES, "verbose": _anything}
OPTIONS_ACCEPTED: Accepted = {
    **dict.fromkeys(("num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "num_thread", "numa"), _anything),
    **dict.fromkeys(("num_keep", "f16_kv", "use_mmap", "use_mlock", "vocab_only", "logits_all"), _anything),
    **dict.fromkeys(("mirostat_tau", "mirostat_eta", "penalize_newline"), _anything),
    "mirostat": lambda value: value == 0,
    "repeat_last_n": lambda value: value == -1,
    "tfs_z": lambda value: value == 1,
    "typical_p": lambda value: value == 1,
}
