"""Sequences that the model writes itself: heads that learn from them learn what they will be asked to foresee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.engine.llm import LLM
from octavo.request import SamplingParams
from octavo.train.order import HeadOrder
from octavo.train.texts import TokenRun

AT_ONCE = 32  # requests that run together


def continued(order: HeadOrder, prompts: Sequence[tuple[int, ...]], first: int) -> Iterator[list[TokenRun]]:
    """Prompts from number `first` on with what the model says behind them, AT_ONCE at a time.

    Noise goes by the number of the prompt, so that a run that was broken off goes on as it would have.
    """
    longest = max(map(len, prompts)) + order.generate
    llm = LLM(order.model, threads=order.threads, max_num_seqs=AT_ONCE, max_model_len=longest)
    try:
        for begin in range(first, len(prompts), AT_ONCE):
            chunk = prompts[begin : begin + AT_ONCE]
            params = [
                SamplingParams(max_tokens=order.generate, temperature=order.temperature, seed=order.seed + number)
                for number in range(begin, begin + len(chunk))
            ]
            answers = llm.generate(list(chunk), params, use_tqdm=False)
            yield [
                TokenRun((*prompt, *answer.outputs[0].token_ids), len(prompt))
                for prompt, answer in zip(chunk, answers, strict=True)
            ]
    finally:
        llm.close()
