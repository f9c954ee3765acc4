"""A scripted AsyncLLM: answers with fixed tokens, through the engine's own input checks and text assembly.

Prompt tokens are read, nothing is computed. `opened` and `closed` count streams; `hold` makes a stream wait for ever
after its first token, `mute` (an event) before it; `failure` is what ends it.
"""

import asyncio

from octavo.engine.inputs import InputReader
from octavo.engine.outputs import EmbeddingOutput, Transcript
from octavo.engine.port import EngineStats, ModelInfo
from octavo.grammar.structures import Structures
from octavo.request import TokenDelta, TokenLogprobs
from octavo.text.chat import ChatTemplate

ANSWER = "The quick brown fox, ďábel \N{HOT PEPPER}."


class ScriptedLLM:
    def __init__(self, tokenizer, template=None, *, max_model_len=256, num_blocks=64):
        self.tokenizer = tokenizer
        self.info = ModelInfo(
            name="toy/model",
            vocab_size=tokenizer.size,
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            block_tokens=16,
            kv_bytes_per_token=4,
            weights_bytes=1,
            numerics="scripted-1/f32/f32/kv-f32/portable",
            isa="portable",
            threads=1,
            load_seconds=0.0,
        )
        self.error = None
        self.answer = ANSWER
        self.script = None  # token ids instead
        self.hold = False
        self.mute = None
        self.pause = 0.0
        self.failure = None
        self.drafts = 0, 0  # verified in a step, and accepted
        self.opened = self.closed = 0
        self.calls = []
        self._structures = Structures(lambda: self.tokenizer)
        self._reader = InputReader(self.info, tokenizer, self._structures)
        self._template = template or ChatTemplate.of(tokenizer)

    def check_structure(self, structure):
        self._structures.check(structure)

    def encode_chat(self, messages, /, **options):
        return self._template.encode(self.tokenizer, messages, **options)

    async def stream(self, prompt, params, *, request_id=None, tenant="", salt="", priority=0, courses=None):
        self.calls.append({"prompt": tuple(prompt), "params": params, "tenant": tenant, "salt": salt})
        prepared = self._reader.prepare(prompt, params, str(len(self.calls)), tenant=tenant, salt=salt)
        transcripts = [
            Transcript(request, child, self.tokenizer, lambda *_: None)
            for child, request in enumerate(prepared.requests)
        ]
        if courses is not None:
            courses += [transcript.course for transcript in transcripts]
        self.opened += 1
        try:
            if self.mute is not None:
                await self.mute.wait()
            for step in range(1000):
                for transcript in transcripts:
                    if transcript.finished:
                        continue
                    transcript.take(self._delta(transcript, step))
                    if (delta := transcript.pull()) is not None:
                        yield delta
                await asyncio.sleep(self.pause)
                if self.hold:
                    await asyncio.Event().wait()
                if all(transcript.finished for transcript in transcripts):
                    return
        finally:
            self.closed += 1

    async def embed(self, prompt, *, request_id=None, tenant=""):
        prepared = self._reader.prepare_embedding(prompt, str(request_id), tenant=tenant)
        self.calls.append({"prompt": prepared.prompt_ids, "tenant": tenant})
        await asyncio.sleep(self.pause)
        ids = prepared.prompt_ids
        return EmbeddingOutput(str(request_id), prepared.text, ids, [0.6, 0.0, 0.8, float(len(ids))])

    @property
    def unfinished(self):
        return self.opened - self.closed

    def stats(self):
        return EngineStats(self.opened - self.closed, 0, 64, 64, 0, 0, 0, 0, 0, 0, drafts=9, accepted_at=(3, 1))

    def close(self):
        self._template.close()

    def ids_of(self, request):
        """What this request is answered with, its end among it."""
        return self.script or [*self.tokenizer.encode(self.answer), self.tokenizer.eos_ids[0]]

    def _delta(self, transcript, step):
        request, params = transcript.request, transcript.request.params
        if self.failure is not None and step >= 2:
            return TokenDelta(request.id, (), finish_reason="error", stop_reason=self.failure)
        prompt_logprobs = ()
        if step == 0 and params.prompt_logprobs is not None:
            prompt_logprobs = tuple(
                self._entries(token, params.prompt_logprobs) for token in request.prompt_ids[request.first_row + 1 :]
            )
        if params.max_tokens == 0:
            return TokenDelta(request.id, (), prompt_logprobs=prompt_logprobs, finish_reason="length")
        ids = self.ids_of(request)
        token = ids[step]
        last = step + 1 == len(ids)
        full = step + 1 == params.max_tokens
        return TokenDelta(
            request.id,
            (token,),
            logprobs=() if params.logprobs is None else (self._entries(token, params.logprobs),),
            prompt_logprobs=prompt_logprobs,
            finish_reason="stop" if last else "length" if full else None,
            stop_reason=None,
            cached_tokens=1,
            drafted=self.drafts[0],
            accepted=self.drafts[1],
        )

    def _entries(self, token, top):
        others = [other for other in range(10, 10 + max(top, 1)) if other != token]
        entries = [(token, -0.25, 1), *((other, -2.0 - rank, rank + 2) for rank, other in enumerate(others))]
        return TokenLogprobs(tuple(entries[: max(top, 1)]))
