"""LLM: the engine for scripts, list in, list out. AsyncLLM: the same engine for servers, one stream a request.

with LLM("smollm2:135m") as llm:
    for output in llm.generate(["The capital of France is"], SamplingParams(temperature=0)):
        print(output.outputs[0].text)
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Literal

from octavo.config import ActivationKind, EngineConfig, KVDType, VerifyRule
from octavo.drafters.port import Drafter
from octavo.engine.course import NO_DRAFTS
from octavo.engine.executor import ProgressHook, ThreadEngine, no_progress
from octavo.engine.inputs import InputReader, Prepared, Prompt
from octavo.engine.outputs import EmbeddingOutput, RequestOutput, StreamDelta, Transcript, completion, embedding
from octavo.engine.port import EngineStats, ModelInfo
from octavo.engine.progress import CountBar
from octavo.engine.streams import AsyncLLM
from octavo.engine.vocabulary import check_template, load_tokenizer
from octavo.errors import EngineError, RequestError
from octavo.grammar.structures import Structures
from octavo.request import LogitsProcessor, SamplingParams, TokenDelta
from octavo.text.chat import ChatTemplate, check_options
from octavo.text.tokenizer import Tokenizer

__all__ = ["LLM", "AsyncLLM"]

Message = Mapping[str, Any]


class LLM:
    """One model in this process. Keywords are the fields of EngineConfig; sizes in bytes. logits_processor: of requests
    whose SamplingParams have none.

    Thread-safe: calls from several threads share the batch.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        executor: Literal["native", "reference"] = "native",
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        threads: int | None = None,
        isa: str | None = None,
        kv_dtype: KVDType = "auto",
        activations: ActivationKind = "auto",
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        max_logit_rows: int = 256,
        max_model_len: int | None = None,
        kv_memory: int | None = None,
        num_blocks: int | None = None,
        block_tokens: int = 16,
        enable_prefix_caching: bool = True,
        plans_outstanding: int = 1,
        packed_cache: Literal["off", "on"] = "off",
        journal: str | None = None,
        speculate: str = "auto",
        verify: VerifyRule = "equal",
        served_model_name: str | None = None,
        task: Literal["auto", "generate", "embed"] = "auto",
        pooling: Literal["auto", "last", "mean", "cls"] = "auto",
        normalize: bool = True,
        drafter: Drafter | None = None,
        logits_processor: LogitsProcessor | None = None,
        progress: ProgressHook = no_progress,
    ) -> None:
        self.config = EngineConfig(
            model=fspath(model),
            executor=executor,
            dtype=dtype,
            threads=threads,
            isa=isa,
            kv_dtype=kv_dtype,
            activations=activations,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_logit_rows=max_logit_rows,
            max_model_len=max_model_len,
            kv_memory=kv_memory,
            num_blocks=num_blocks,
            block_tokens=block_tokens,
            enable_prefix_caching=enable_prefix_caching,
            plans_outstanding=plans_outstanding,
            packed_cache=packed_cache,
            journal=journal,
            speculate=speculate,
            verify=verify,
            served_model_name=served_model_name,
            task=task,
            pooling=pooling,
            normalize=normalize,
        )
        self._start(drafter, logits_processor, progress)

    def _start(self, drafter: Drafter | None, logits_processor: LogitsProcessor | None, progress: ProgressHook) -> None:
        self.tokenizer: Tokenizer = load_tokenizer(self.config.model)
        self._template = ChatTemplate.started(self.tokenizer)
        structures = Structures(lambda: self.tokenizer)
        self._engine = ThreadEngine(self.config, drafter=drafter, progress=progress, structures=structures)
        check_template(self._template, self._engine)
        self._inputs = InputReader(self._engine.info, self.tokenizer, structures, processor=logits_processor)
        self._ids = itertools.count()

    # ---- generation
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int = 0,
    ) -> list[RequestOutput]:
        """One output per prompt, in order. A prompt is text, token ids or {"prompt_token_ids": [...]}.

        sampling_params: one for all, or one per prompt. Nothing runs if any prompt is refused.
        """
        listed = _listed(prompts)
        params = _params(sampling_params, len(listed))
        prepared = [
            self._inputs.prepare(prompt, wanted, str(next(self._ids)), priority=priority)
            for prompt, wanted in zip(listed, params, strict=True)
        ]
        return self._run(prepared, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """One answer per conversation: a list of messages, or a list of such lists.

        Where a prompt ends in open reasoning, a structure binds what comes after it.
        """
        options = dict(chat_template_kwargs or {})
        check_options(options)
        prompts = [
            self.encode_chat(talk, tools=tools, add_generation_prompt=add_generation_prompt, **options)
            for talk in _conversations(messages)
        ]
        params = _params(sampling_params, len(prompts))
        behind = [self._inputs.behind_reasoning(*one) for one in zip(prompts, params, strict=True)]
        return self.generate(prompts, behind, use_tqdm=use_tqdm)

    # ---- embeddings
    def embed(self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True) -> list[EmbeddingOutput]:
        """One vector a prompt, in order, of a model that was loaded to embed: `task` and `pooling` of EngineConfig.

        Nothing runs if any prompt is refused. An encoder's texts are computed whole: longer ones than
        max_num_batched_tokens are refused.
        """
        prepared = [self._inputs.prepare_embedding(prompt, str(next(self._ids))) for prompt in _listed(prompts)]
        inbox: queue.SimpleQueue[TokenDelta] = queue.SimpleQueue()
        waited = {one.request_id for one in prepared}
        done: dict[str, TokenDelta] = {}
        try:
            for one in prepared:
                self._engine.submit(one.requests[0], inbox.put)
            with CountBar("embedding", len(prepared), shown=use_tqdm) as bar:
                while waited:
                    delta = inbox.get()
                    if delta.finish_reason is not None and delta.request_id in waited:
                        waited.remove(delta.request_id)
                        done[delta.request_id] = delta
                        bar.advance(1, delta.computed)
        finally:
            for request_id in waited:
                self._engine.abort(request_id)
        if self._engine.error is not None:
            raise EngineError(self._engine.error.message, code=self._engine.error.code)
        return [embedding(one.request_id, one.text, one.prompt_ids, done[one.request_id]) for one in prepared]

    # ---- text
    @property
    def chat_template(self) -> ChatTemplate:
        """Raises RequestError when the model has none."""
        if self._template is None:
            self._template = ChatTemplate.of(self.tokenizer)
        return self._template

    def encode_chat(self, messages: Sequence[Message], /, **options: Any) -> list[int]:
        """The prompt ids of one conversation; options as ChatTemplate.encode takes them."""
        return self.chat_template.encode(self.tokenizer, messages, **options)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, as generate would make them."""
        return list(self._inputs.encode(text)[1])

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(token_ids, skip_special=skip_special_tokens)

    # ---- the engine
    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def close(self) -> None:
        """Frees everything. Idempotent."""
        self._engine.close()
        if self._template is not None:
            self._template.close()

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # ---- inside
    def _run(self, prepared: Sequence[Prepared], shown: bool) -> list[RequestOutput]:
        """Submits everything, then assembles text while the engine works."""
        inbox: queue.SimpleQueue[TokenDelta] = queue.SimpleQueue()
        open_: dict[str, Transcript] = {}
        done: dict[str, StreamDelta] = {}
        for one in prepared:
            for child, request in enumerate(one.requests):
                open_[request.id] = Transcript(request, child, self.tokenizer, self._engine.finish)
        try:
            for transcript in tuple(open_.values()):
                self._engine.submit(transcript.request, inbox.put)
            with CountBar("generating", len(open_), shown=shown) as bar:
                while open_:
                    delta = inbox.get()
                    if delta.request_id not in open_:
                        continue
                    transcript = open_[delta.request_id]
                    transcript.take(delta)
                    if transcript.finished:
                        done[delta.request_id] = _last(transcript)
                        del open_[delta.request_id]
                    bar.advance(int(transcript.finished), len(delta.token_ids))
        finally:
            for request_id in open_:
                self._engine.abort(request_id)
        if self._engine.error is not None:
            raise EngineError(self._engine.error.message, code=self._engine.error.code)
        return [_output(one, done) for one in prepared]


def _last(transcript: Transcript) -> StreamDelta:
    delta = transcript.pull()
    if delta is None:
        raise EngineError(f"request {transcript.request.id} ended without a last delta")
    return delta


def _output(prepared: Prepared, done: Mapping[str, StreamDelta]) -> RequestOutput:
    deltas = [done[request.id] for request in prepared.requests]
    return RequestOutput(
        request_id=prepared.request_id,
        prompt=prepared.text,
        prompt_token_ids=prepared.prompt_ids,
        outputs=[completion(delta) for delta in deltas],
        prompt_logprobs=deltas[0].prompt_logprobs,
        num_cached_tokens=deltas[0].cached_tokens,
        drafts=sum((delta.drafts for delta in deltas), NO_DRAFTS),
    )


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts; a single one, token ids included, becomes a list of one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
        raise RequestError("prompts: text, token ids, or a list of either", param="prompt")
    listed: list[Any] = list(prompts)
    return [tuple(listed)] if listed and all(isinstance(item, int) for item in listed) else listed


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    single: list[Message] = [message for message in messages if isinstance(message, Mapping)]
    several: list[Sequence[Message]] = [talk for talk in messages if not isinstance(talk, Mapping)]
    if single and several:
        raise RequestError("messages: either one list of messages or a list of such lists", param="messages")
    return [single] if single else several


def _params(given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    if not isinstance(given, Sequence) or not all(isinstance(one, SamplingParams) for one in given):
        raise RequestError("sampling_params must be SamplingParams, one or a list", param="sampling_params")
    if len(given) != count:
        raise RequestError(f"{len(given)} sampling_params for {count} prompts", param="sampling_params")
    return list(given)
