"""What callers give (text, token ids, parameters) -> Requests, or a refusal that names the field.

Owns the rules of the way in: what a prompt may be, n children and their seeds, bad words as token ids, what can never
run. The scheduler sees token ids only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.engine.port import ModelInfo
from octavo.errors import RequestError, UnsupportedError
from octavo.grammar.structures import Structures
from octavo.request import LogitsProcessor, Request, SamplingParams, Thinking
from octavo.sampling.seeds import child_seed, mint_seed
from octavo.text.dialects.bound import after_reasoning
from octavo.text.dialects.known import dialect_of
from octavo.text.dialects.thinking import bounded, tail_of
from octavo.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, object]
MAX_PRIORITY = 2**31  # of either sign
PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids"})


@dataclass(frozen=True, slots=True)
class Prepared:
    """One prompt, ready to run: its text where there was one, and n requests, child 0 first."""

    request_id: str
    text: str | None
    requests: tuple[Request, ...]

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.requests[0].prompt_ids


class InputReader:
    """Turns prompts into requests for one model."""

    def __init__(
        self,
        info: ModelInfo,
        vocabulary: Tokenizer,
        structures: Structures | None = None,
        *,
        processor: LogitsProcessor | None = None,
        apart: bool = False,
    ) -> None:
        """structures: those of the vocabulary, where the engine's own can be shared. processor: of requests that bring
        none. apart: the engine is another process."""
        self._processor = processor
        self._apart = apart
        self._info = info
        self._vocabulary = vocabulary
        self._structures = structures or Structures(lambda: vocabulary)

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        tenant: str = "",
        salt: str = "",
        priority: int = 0,
    ) -> Prepared:
        """Raises RequestError, ContextLengthError, CapacityError: nothing that passes can never run."""
        if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
            raise RequestError(f"priority must be a whole number up to {MAX_PRIORITY}", param="priority")
        if self._info.task != "generate":
            raise RequestError("this model embeds, it does not generate text", param="model")
        text, ids = self.encode(prompt)
        _check_params(params, self._info.vocab_size)
        if params.prompt_logprobs_from >= len(ids):
            message = f"prompt_logprobs_from is below the {len(ids)} tokens of the prompt"
            raise RequestError(message, param="prompt_logprobs_from")
        self._info.check(len(ids), params.max_tokens)
        processor = params.logits_processor or self._processor
        if processor is not None and self._apart:
            said = "logits_processor: the engine is a process of its own, which a function cannot reach: use LLM()"
            raise UnsupportedError(said, param="logits_processor")
        if processor is not None and self._info.verify != "equal" and not params.greedy:
            said = f"logits_processor: not where drafts are verified by --verify {self._info.verify}"
            raise UnsupportedError(said, param="logits_processor")
        seed = mint_seed() if params.seed is None else params.seed
        bad_words = self._bad_words(params.bad_words)
        self._check_choice(params, bad_words)
        if params.structure is not None:
            self._structures.check(params.structure)
        thinking = self._thinking(ids, params)
        requests = []
        for child in range(params.n):
            prompt_logprobs = params.prompt_logprobs if child == 0 else None
            requests.append(
                Request(
                    id=request_id if params.n == 1 else f"{request_id}.{child}",
                    prompt_ids=ids,
                    params=replace(params, n=1, prompt_logprobs=prompt_logprobs, logits_processor=processor),
                    seed=child_seed(seed, child, params.n),
                    eos_ids=self._vocabulary.eos_ids,
                    bad_word_ids=bad_words,
                    thinking=thinking,
                    tenant=tenant,
                    salt=salt,
                    priority=priority,
                )
            )
        return Prepared(request_id, text, tuple(requests))

    def prepare_embedding(self, prompt: Prompt, request_id: str, *, tenant: str = "", priority: int = 0) -> Prepared:
        """Raises RequestError, ContextLengthError, CapacityError, as `prepare` does."""
        if self._info.task != "embed":
            raise RequestError("this model generates: load it with task embed", param="model")
        text, ids = self.encode(prompt)
        self._info.check(len(ids), 0)
        params, whole = SamplingParams(max_tokens=0), self._info.step_tokens > 0
        request = Request(id=request_id, prompt_ids=ids, params=params, tenant=tenant, priority=priority, whole=whole)
        return Prepared(request_id, text, (request,))

    def behind_reasoning(self, ids: Sequence[int], params: SamplingParams) -> SamplingParams:
        """For a templated prompt: what the output must be stands after the reasoning that the prompt has opened."""
        if params.structure is None:
            return params
        dialect, tail = dialect_of(self._vocabulary.chat_template), tail_of(self._vocabulary, ids)
        return replace(params, structure=after_reasoning(dialect, tail, params.structure))

    def encode(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        """(text, ids). Text may hold special tokens; it gets exactly one BOS where the model wants one."""
        if isinstance(prompt, Mapping):
            unknown = sorted(set(prompt) - PROMPT_KEYS)
            if unknown or not prompt:
                raise RequestError(
                    f"a prompt has prompt or prompt_token_ids, not {unknown or 'nothing'}", param="prompt"
                )
            text = prompt.get("prompt")
            if text is not None and not isinstance(text, str):
                raise RequestError("prompt must be text", param="prompt")
            ids = prompt.get("prompt_token_ids")
            if ids is None:
                return self.encode(text or "")
            return text, self._ids(ids)
        if isinstance(prompt, str):
            return prompt, self._text(prompt)
        return None, self._ids(prompt)

    def _text(self, text: str) -> tuple[int, ...]:
        if not text:
            raise RequestError("the prompt is empty", param="prompt")
        ids = self._vocabulary.encode(text, add_special=True, parse_special=True)
        bos = self._vocabulary.bos_id
        twice = bos is not None and ids[:2] == [bos, bos]
        return tuple(ids[1:] if twice else ids)

    def _ids(self, ids: object) -> tuple[int, ...]:
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
            raise RequestError("prompt_token_ids must be a list of integers", param="prompt")
        checked = tuple(ids)
        if not checked:
            raise RequestError("the prompt is empty", param="prompt")
        size = self._info.vocab_size
        for token in checked:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
                raise RequestError(f"prompt: {token!r} is no token id of a vocabulary of {size}", param="prompt")
        return checked

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it is spelt at the start of a text and after a space."""
        spellings: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, " " + word.lstrip()):
                spelling = tuple(self._vocabulary.encode(text))
                if spelling:
                    spellings[spelling] = None
        return tuple(spellings)

    def _thinking(self, ids: Sequence[int], params: SamplingParams) -> Thinking | None:
        if params.thinking_budget is None:
            return None
        dialect, formed = dialect_of(self._vocabulary.chat_template), params.structure is not None
        return bounded(self._vocabulary, dialect, ids, params.thinking_budget, formed=formed)

    def _check_choice(self, params: SamplingParams, bad_words: Iterable[tuple[int, ...]]) -> None:
        """Refuses parameters that together leave no token for the first position."""
        banned = {word[0] for word in bad_words if len(word) == 1}
        if params.min_tokens:
            banned |= {*self._vocabulary.eos_ids, *params.stop_token_ids}
        allowed = params.allowed_token_ids
        if not banned.issuperset(range(self._info.vocab_size) if allowed is None else allowed):
            return
        name = "stop_token_ids" if allowed is None else "allowed_token_ids"
        raise RequestError(f"{name}: no token is left beside min_tokens and bad_words", param=name)


def check_structured(params: SamplingParams) -> None:
    """Refuses what would keep an output from ending where its structure ends."""
    for name in ("ignore_eos", "min_tokens", "bad_words", "allowed_token_ids"):
        if params.structure is not None and getattr(params, name):
            raise RequestError(f"{name}: not together with structured output", param=name)
    for name in ("bad_words", "allowed_token_ids"):
        if params.thinking_budget is not None and getattr(params, name):
            raise RequestError(f"{name}: not together with thinking_budget", param=name)


def _check_params(params: SamplingParams, vocab_size: int) -> None:
    params.check_vocabulary(vocab_size)
    check_structured(params)
    if params.stop and not params.detokenize:
        raise RequestError("stop strings need text: leave detokenize on, or give stop_token_ids", param="stop")
    if params.max_tokens == 0 and params.prompt_logprobs is None:
        raise RequestError("max_tokens 0 computes nothing without prompt_logprobs", param="max_tokens")
