"""What the server needs of an engine with text: AsyncLLM's surface, as a protocol that a scripted fake can meet."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from octavo.engine.course import Course
from octavo.engine.outputs import EmbeddingOutput, StreamDelta
from octavo.engine.port import EngineStats, ModelInfo
from octavo.errors import OctavoError
from octavo.request import SamplingParams, Structure
from octavo.text.tokenizer import Tokenizer


class Living(Protocol):
    """What serves until it stops. error: why nothing is served any more, else None."""

    @property
    def error(self) -> OctavoError | None: ...

    def close(self) -> None: ...


class TextEngine(Living, Protocol):
    """One model behind streams. Closing a stream aborts it."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def tokenizer(self) -> Tokenizer: ...

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
        courses: list[Course] | None = None,
    ) -> AsyncGenerator[StreamDelta, None]: ...

    async def embed(
        self, prompt: str | Sequence[int], *, request_id: str | None = None, tenant: str = ""
    ) -> EmbeddingOutput: ...

    def stats(self) -> EngineStats: ...

    @property
    def unfinished(self) -> int:
        """Sequences that the engine was given and has not ended."""
