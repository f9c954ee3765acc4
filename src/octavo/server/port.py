"""What the server needs of an engine with text: AsyncLLM's surface, as a protocol that a scripted fake can meet."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from octavo.engine.outputs import EmbeddingOutput, StreamDelta
from octavo.engine.port import EngineStats, ModelInfo
from octavo.errors import OctavoError
from octavo.request import SamplingParams, Structure
from octavo.text.tokenizer import Tokenizer


class TextEngine(Protocol):
    """One model behind streams. Closing a stream aborts it. error: why the engine has stopped, else None."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def error(self) -> OctavoError | None: ...

    def check_structure(self, structure: Structure) -> None:
        """Raises RequestError, UnsupportedError for what cannot be compiled. Takes up to half a second."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]: ...

    def stream(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        tenant: str = "",
        salt: str = "",
        priority: int = 0,
    ) -> AsyncGenerator[StreamDelta, None]: ...

    async def embed(
        self, prompt: str | Sequence[int], *, request_id: str | None = None, tenant: str = ""
    ) -> EmbeddingOutput: ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...
