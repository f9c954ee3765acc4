"""Sequences that the model writes itself: heads that learn from them learn what they will be asked to foresee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.engine.llm import LLM
from octavo.request import SamplingParams
from octavo.train.order import HeadOrder
from octavo.train.texts import Prompt, TokenRun

AT_ONCE = 64  # requests that run together


def continued(order: HeadOrder, prompts: Sequence[Prompt], first: int) -> Iterator[list[TokenRun]]:
    """Prompts from number `first` on with what the model says behind them, AT_ONCE at a time.

    Noise goes by the number of the prompt, so that a run that was broken off goes on as it would have.
    """
    longest = max(len(prompt.ids) for prompt in prompts) + order.generate
    llm = LLM(order.model, threads=order.threads, max_num_seqs=AT_ONCE, max_model_len=longest)
    try:
        for begin in range(first, len(prompts), AT_ONCE):
            chunk = prompts[begin : begin + AT_ONCE]
            params = [_params(order, prompt, number) for number, prompt in enumerate(chunk, begin)]
            answers = llm.generate([prompt.ids for prompt in chunk], params, use_tqdm=False)
            yield [
                TokenRun((*prompt.ids, *answer.outputs[0].token_ids), len(prompt.ids))
                for prompt, answer in zip(chunk, answers, strict=True)
            ]
    finally:
        llm.close()


def _params(order: HeadOrder, prompt: Prompt, number: int) -> SamplingParams:
    temperature = order.temperature if prompt.temperature is None else prompt.temperature
    return SamplingParams(max_tokens=order.generate, temperature=temperature, seed=order.seed + number)
