"""The port between faces (Python API, server) and the engine, which runs in a thread here or in a child process.

Faces speak text; the engine speaks token ids only. Deltas arrive on a callback, in order, from a thread of the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from octavo.config import VerifyRule
from octavo.errors import CapacityError, ContextLengthError
from octavo.request import Request, TokenDelta


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What faces and the capacity table need to know of the running engine. Sizes in bytes, load time in seconds."""

    name: str
    vocab_size: int
    max_model_len: int
    num_blocks: int  # usable blocks, the null block not counted
    block_tokens: int
    kv_bytes_per_token: int
    weights_bytes: int
    numerics: str
    isa: str
    threads: int
    load_seconds: float
    task: Literal["generate", "embed"] = "generate"
    step_tokens: int = 0  # texts are computed whole, of at most so many tokens; 0: in chunks
    verify: VerifyRule = "equal"  # how drafts are accepted
    notes: tuple[str, ...] = ()  # one line each: what of the checkpoint was ignored, what was rounded

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_tokens

    def check(self, prompt_tokens: int, max_tokens: int | None) -> None:
        """Refuses at once what can never run. Raises ContextLengthError, CapacityError with the numbers."""
        if self.step_tokens and prompt_tokens > self.step_tokens:
            raise CapacityError(
                f"the text has {prompt_tokens} tokens and is computed whole, in a step of at most {self.step_tokens}: "
                "shorten it or raise --max-num-batched-tokens",
                param="prompt",
            )
        wanted = prompt_tokens + (1 if max_tokens is None else max_tokens)
        if prompt_tokens >= self.max_model_len + (max_tokens == 0):
            raise ContextLengthError(
                f"the prompt has {prompt_tokens} tokens, the context length is {self.max_model_len}: shorten it",
                param="prompt",
            )
        if wanted > self.max_model_len:
            raise ContextLengthError(
                f"prompt ({prompt_tokens}) + max_tokens ({max_tokens}) = {wanted} exceeds the context length of "
                f"{self.max_model_len}: shorten the prompt or lower max_tokens",
                param="max_tokens",
            )
        if wanted > self.kv_tokens:
            raise CapacityError(
                f"{wanted} tokens exceed the KV cache of {self.kv_tokens} tokens: shorten the prompt, lower max_tokens "
                "or raise --kv-memory",
                param="prompt",
            )


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since start and gauges of now. Blocks: free + cached + used = total.

    step_seconds: of all turns that committed a step; step_counts: how many took up to each of STEP_BOUNDS, each counted
    once, and how many longer. masks, mask_seconds: of outputs that have a form. drafts: proposed and verified.
    draft_steps: rows of steps that verified any; accepted_at: how many of them accepted a draft at depth 1, 2, ...
    """

    running: int
    waiting: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    preemptions: int
    step_seconds: float = 0.0
    step_counts: tuple[int, ...] = ()
    masks: int = 0
    mask_seconds: float = 0.0
    drafts: int = 0
    drafts_accepted: int = 0
    draft_steps: int = 0
    accepted_at: tuple[int, ...] = ()


# Seconds; a step takes a fraction of a millisecond on a toy and many seconds for a long chunk of a large model.
STEP_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

Sink = Callable[[TokenDelta], None]


class Engine(Protocol):
    """Thread-safe. After `submit` returns, the sink gets exactly one delta with a finish_reason, the last."""

    info: ModelInfo

    def submit(self, request: Request, sink: Sink) -> None: ...

    def abort(self, request_id: str) -> None:
        """Ends a request at any moment; unknown or finished ids are ignored."""

    def finish(self, request_id: str, at_token: int, stop_reason: str) -> None:
        """A stop string was found: the output ends after `at_token` tokens."""

    def stats(self) -> EngineStats: ...

    def close(self) -> None:
        """Ends every stream and frees everything. Idempotent."""
