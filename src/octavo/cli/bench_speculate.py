"""`octavo bench --speculate KIND,...`: drafters beside plain decoding, in turns, on texts that repeat and others.

A pair is the same prompts in the engine without drafts and in that of a kind, one after the other, the order changing
from pair to pair; every pair has prompts of its own, and outputs of earlier ones are out of reach of any lookup. The
rate of a run: tokens that came after every request had its first, over that time. ids of both are the same, or it is an
error. Prose is sampled, since the likeliest text of a small model soon goes in circles; NAME@T is a text at temperature
T. `forced` proposes what the
plain run said, so that all is accepted: what the mechanism can bring.
"""

from __future__ import annotations

import argparse
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from octavo.cli.screen import progress, table
from octavo.config import EngineConfig, speculates
from octavo.drafters.recorded import RecordedDrafter
from octavo.engine.executor import ThreadEngine
from octavo.engine.vocabulary import load_tokenizer
from octavo.errors import EngineError, UsageError
from octavo.request import Request, SamplingParams, TokenDelta
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from octavo.workload.repeats import MESSAGES, TEXTS, text

FORCED = "forced"
TEMPERATURES = {"prose": 0.8}  # of others 0
PLAIN = "off"
WARM = 1  # pairs before those that count


@dataclass(frozen=True, slots=True)
class Line:
    """One kind on one text at one batch. ratio: median of the pairs' rates over plain ones; low: lower end of its 95 %
    interval. acceptance_length: tokens of an output's step that had drafts; share: of drafts, accepted. tok_s,
    plain_tok_s: medians."""

    text: str
    batch: int
    kind: str
    ratio: float
    low: float
    acceptance_length: float
    share: float
    tok_s: float
    plain_tok_s: float
    pairs: int


@dataclass(frozen=True, slots=True)
class Ran:
    """ids: of every request, in order. rate: tokens a second."""

    ids: tuple[tuple[int, ...], ...]
    rate: float


def run(args: argparse.Namespace, plan: dict[str, Any], config: Callable[..., EngineConfig]) -> dict[str, Any]:
    """config: the engine's, with these fields changed. Returns what the JSON says."""
    kinds, texts = plan["speculate"], plan["texts"]
    _check(plan, config())
    tokenizer = load_tokenizer(config().model)
    with ExitStack() as stack:
        recorded = RecordedDrafter()
        engines: dict[str, ThreadEngine] = {}
        for kind in (PLAIN, *kinds):
            with progress(f"loading, {kind}") as advance:
                own = config(speculate=PLAIN if kind == FORCED else kind)
                engines[kind] = ThreadEngine(own, drafter=recorded if kind == FORCED else None, progress=advance)
            stack.callback(engines[kind].close)
        race = Race(engines, recorded, Prompts(tokenizer, stack), plan["decode_steps"])
        lines = [line for batch in plan["batch"] for name in texts for line in race.lines(name, batch, plan["pairs"])]
    columns = ("text", "batch", "kind", "ratio", "at least", "tokens a step", "accepted", "tok/s", "plain")
    table(
        f"{args.model}: {plan['pairs']} pairs, up to {plan['decode_steps']} tokens each",
        columns,
        [_cells(line) for line in lines],
    )
    return {
        "model": args.model,
        "workload": "speculate",
        "pairs": plan["pairs"],
        "decode_steps": plan["decode_steps"],
        "numerics": engines[PLAIN].info.numerics,
        "threads": engines[PLAIN].info.threads,
        "lines": [asdict(line) for line in lines],
    }


def _check(plan: dict[str, Any], config: EngineConfig) -> None:
    for kind in plan["speculate"]:
        if kind != FORCED and (kind == PLAIN or not speculates(kind)):
            raise UsageError(f"bench: --speculate {kind!r} is no kind of drafter, nor {FORCED}", param="speculate")
    for name in plan["texts"]:
        _text(name)
    if plan["pairs"] < 1 or not plan["texts"]:
        raise UsageError("bench: --pairs is at least 1, and --texts names one", param="pairs")
    if config.executor != "native":
        raise UsageError("bench: --speculate compares bits, which --executor native keeps", param="executor")
    if config.verify != "equal":
        raise UsageError("bench: --speculate compares texts, which --verify equal keeps", param="verify")


def _text(given: str) -> tuple[str, float]:
    """NAME or NAME@T: of TEXTS, and its temperature. Raises UsageError."""
    name, at, stated = given.partition("@")
    if name not in TEXTS:
        raise UsageError(f"bench: --texts {name!r} is not one of {', '.join(TEXTS)}", param="texts")
    try:
        temperature = float(stated) if at else TEMPERATURES.get(name, 0.0)
    except ValueError:
        temperature = -1.0
    if not 0 <= temperature < math.inf:
        raise UsageError(f"bench: --texts {given!r}: behind the @ stands no temperature", param="texts")
    return name, temperature


class Prompts:
    """Texts as a model reads them; messages in its chat template, whose process is started with the first."""

    def __init__(self, tokenizer: Tokenizer, stack: ExitStack) -> None:
        self._tokenizer = tokenizer
        self._stack = stack
        self._template: ChatTemplate | None = None

    def of(self, name: str, seed: int) -> tuple[int, ...]:
        """Raises RequestError for messages to a model without a template."""
        said = text(name, seed)
        if name not in MESSAGES:
            return tuple(self._tokenizer.encode(said, add_special=True))
        if self._template is None:
            self._template = ChatTemplate.of(self._tokenizer)
            self._stack.callback(self._template.close)
        return tuple(self._template.encode(self._tokenizer, [{"role": "user", "content": said}]))


class Race:
    """The same prompts through several engines."""

    def __init__(
        self, engines: dict[str, ThreadEngine], recorded: RecordedDrafter, prompts: Prompts, steps: int
    ) -> None:
        self._engines = engines
        self._recorded = recorded
        self._prompts = prompts
        self._steps = steps
        self._number = 0

    def lines(self, given: str, batch: int, pairs: int) -> list[Line]:
        name, temperature = _text(given)
        kinds = [kind for kind in self._engines if kind != PLAIN]
        rates: dict[str, list[float]] = {kind: [] for kind in self._engines}
        counted = dict.fromkeys(kinds, (0, 0, 0))
        for pair in range(-WARM, pairs):
            prompts = [self._prompts.of(name, (pair + WARM) * batch + place) for place in range(batch)]
            before = {kind: self._drafts(kind) for kind in kinds}
            ran = self._round(prompts, temperature, backward=pair % 2 == 1)
            for kind in kinds:
                if ran[kind].ids != ran[PLAIN].ids:
                    raise EngineError(f"{kind}: on {name}, batch {batch}, the ids are not those of plain decoding")
            if pair >= 0:
                for kind, one in ran.items():
                    rates[kind].append(one.rate)
                for kind in kinds:
                    new = zip(counted[kind], self._drafts(kind), before[kind], strict=True)
                    drafts, accepted, steps = (known + now - then for known, now, then in new)
                    counted[kind] = drafts, accepted, steps
        return [self._line(given, batch, kind, rates, counted[kind]) for kind in kinds]

    def _line(
        self, name: str, batch: int, kind: str, rates: dict[str, list[float]], counted: tuple[int, int, int]
    ) -> Line:
        ratios = [own / plain for own, plain in zip(rates[kind], rates[PLAIN], strict=True)]
        drafts, accepted, steps = counted
        return Line(
            name,
            batch,
            kind,
            round(statistics.median(ratios), 4),
            round(lower_end(ratios), 4),
            round(1 + accepted / steps, 3) if steps else 1.0,
            round(accepted / drafts, 3) if drafts else 0.0,
            round(statistics.median(rates[kind]), 1),
            round(statistics.median(rates[PLAIN]), 1),
            len(ratios),
        )

    def _round(self, prompts: Sequence[tuple[int, ...]], temperature: float, *, backward: bool) -> dict[str, Ran]:
        """Every engine once; the forced one behind the plain one, whose words it has."""
        order = [kind for kind in self._engines if kind != FORCED]
        if backward:
            order.reverse()
        if FORCED in self._engines:
            order.append(FORCED)
        found: dict[str, Ran] = {}
        for kind in order:
            if kind == FORCED:
                self._recorded.said = dict(zip(prompts, found[PLAIN].ids, strict=True))
            found[kind] = self._run(self._engines[kind], prompts, temperature)
        return found

    def _run(self, engine: ThreadEngine, prompts: Sequence[tuple[int, ...]], temperature: float) -> Ran:
        """Equal prompts have equal seeds, in every engine."""
        self._number += 1
        count = len(prompts)
        ids: list[list[int]] = [[] for _ in prompts]
        times: list[list[float]] = [[] for _ in prompts]
        left, failed = threading.Semaphore(0), []

        def listen(place: int, delta: TokenDelta) -> None:
            ids[place] += delta.token_ids
            times[place] += [time.perf_counter()] * len(delta.token_ids)
            if delta.finish_reason is not None:
                if delta.finish_reason not in ("stop", "length"):
                    failed.append(delta.finish_reason)
                left.release()

        params = SamplingParams(temperature=temperature, max_tokens=self._steps, ignore_eos=True)
        for place, prompt in enumerate(prompts):
            engine.info.check(len(prompt), self._steps)
            # a tenant of its own: neither prefixes nor outputs of other runs are found
            name, tenant = f"bench-{self._number}.{place}", f"bench-{self._number}"
            request = Request(name, prompt, params, seed=place, tenant=tenant)
            engine.submit(request, lambda delta, place=place: listen(place, delta))  # type: ignore[misc]
        for _ in range(count):
            left.acquire()
        if failed:
            raise EngineError(f"a request ended with {failed[0]!r} in the middle of the measurement")
        begin, end = max(each[0] for each in times), max(each[-1] for each in times)
        tokens = sum(begin < at for each in times for at in each)
        if end <= begin:
            raise UsageError("bench: --decode-steps is too low for a rate", param="decode_steps")
        return Ran(tuple(map(tuple, ids)), tokens / (end - begin))

    def _drafts(self, kind: str) -> tuple[int, int, int]:
        stats = self._engines[kind].stats()
        return stats.drafts, stats.drafts_accepted, stats.draft_steps


def lower_end(values: Sequence[float]) -> float:
    """Of the 95 % interval of the median: the value that 2.5 % of binomial counts at most lie below; of fewer than six
    values, their least."""
    ordered, count = sorted(values), len(values)
    below, place = 0.0, 0
    while place < count:
        below += math.comb(count, place) / 2**count
        if below > 0.025:
            break
        place += 1
    return ordered[max(place - 1, 0)]


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.text,
        str(line.batch),
        line.kind,
        f"{line.ratio:.2f}",
        f"{line.low:.2f}",
        f"{line.acceptance_length:.2f}",
        f"{line.share:.0%}",
        f"{line.tok_s:,.0f}",
        f"{line.plain_tok_s:,.0f}",
    )
