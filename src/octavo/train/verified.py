"""What a head is worth where it serves: the engine decodes with it, and its verifier counts what comes true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from octavo.config import EngineConfig
from octavo.drafters.heads import head_drafter
from octavo.drafters.target import Target
from octavo.engine.course import NO_DRAFTS
from octavo.engine.llm import LLM
from octavo.request import SamplingParams
from octavo.train.order import HeadOrder, Verified
from octavo.train.texts import TokenRun
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.fetch import resolve
from octavo.weights.stated import model_config

TOKENS = 96  # of each answer
TEMPERATURES = (0.0, 1.0)


def verified(
    order: HeadOrder, runs: Sequence[TokenRun], advance: Callable[[str, int, int], None]
) -> tuple[Verified, ...]:
    """Greedy and sampled answers to the beginnings of `runs`, one after another."""
    prompts = [run.ids[: run.begin or order.prompt] for run in runs]
    llm = _opened(order, max(map(len, prompts)) + TOKENS)
    found: list[Verified] = []
    try:
        for number, temperature in enumerate(TEMPERATURES):
            advance("verifying", number, len(TEMPERATURES))
            before = llm.stats()
            params = [
                SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=temperature, seed=place)
                for place in range(len(prompts))
            ]
            outputs = llm.generate(list(prompts), params, use_tqdm=False)
            drafts = sum((output.drafts for output in outputs), NO_DRAFTS)
            after = llm.stats()
            counts = [count - old for count, old in zip(after.accepted_at, _filled(before.accepted_at), strict=False)]
            found.append(
                Verified(
                    temperature=temperature,
                    tokens=sum(len(output.outputs[0].token_ids) for output in outputs),
                    steps=drafts.steps,
                    proposed=drafts.proposed,
                    length=drafts.length,
                    accepted_at=tuple(count / max(drafts.steps, 1) for count in counts if count),
                )
            )
    finally:
        llm.close()
    return tuple(found)


def _opened(order: HeadOrder, longest: int) -> LLM:
    """The engine with a drafter that always proposes: what it measures is no matter of time."""
    chosen: dict[str, Any] = {"threads": order.threads, "max_num_seqs": 1, "max_model_len": longest}
    with ExitStack() as opened:
        checkpoint = open_checkpoint(resolve(order.model))
        opened.callback(checkpoint.close)
        target = Target(model_config(checkpoint), checkpoint, EngineConfig(model=order.model, **chosen), opened)
        drafter = head_drafter(str(order.out), target, adaptive=False)
        return LLM(order.model, drafter=drafter, **chosen)


def _filled(counts: Sequence[int]) -> tuple[int, ...]:
    """With zeros at the end: no step had drafts so deep."""
    return (*counts, *[0] * 1024)
