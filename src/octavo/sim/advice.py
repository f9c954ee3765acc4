"""What to change first: each change is planned like the wish itself, and said with what it would bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.sim.planning import Plan

_WORDS = {
    "weights": "reading the weights from memory",
    "cache": "reading the KV cache from memory",
    "values": "moving values between operators",
    "products": "multiplying",
    "barrier": "waiting between operators",
    "hand-off": "what happens between steps",
}


@dataclass(frozen=True, slots=True)
class Change:
    """what: in words, with the option to give. gain: what it brings, in words; better: tokens a second over before,
    or requests over before where memory is what is short."""

    what: str
    gain: str
    better: float


def limits(plan: Plan) -> list[tuple[str, float]]:
    """What binds a decode step, in words, and its share of the time, the largest first."""
    shares: dict[str, float] = {}
    for part in plan.speed.parts:
        shares[part.bound] = shares.get(part.bound, 0.0) + part.seconds
    total = sum(shares.values())
    return [(_WORDS[bound], taken / total) for bound, taken in sorted(shares.items(), key=lambda item: -item[1])]


def why(plan: Plan) -> list[str]:
    """Sentences that say what limits the plan, for people who do not know the words of the field."""
    memory, wish = plan.memory, plan.wish
    lines = []
    if memory.spare <= 0:
        lines.append(
            f"The weights do not fit: with the process and working space they take {_gb(memory.fixed)} "
            f"of {_gb(memory.total)}."
        )
    elif not plan.fits and wish.requests:
        each = memory.of_request(plan.speed.context, wish.block_tokens)
        lines.append(
            f"{wish.requests} requests of {plan.speed.context:,} tokens need {_gb(wish.requests * each)} of cache, and "
            f"{_gb(memory.spare)} are free beside the weights."
        )
    first, share = limits(plan)[0]
    lines.append(f"A step that gives each of {plan.batch} requests a token spends {share:.0%} of its time on {first}.")
    intensity = plan.batch
    ridge = plan.machine.ridge
    if intensity < ridge:
        lines.append(
            f"The machine could do about {ridge:.0f} multiplications for each number it reads; {plan.batch} "
            f"request{'s' * (plan.batch != 1)} use {intensity}: more requests at once cost little until then."
        )
    else:
        lines.append("Enough requests run at once to keep the multipliers busy: more of them share the same speed.")
    if not plan.gap_met and wish.gap is not None:
        lines.append(f"A token takes {plan.speed.decode * 1e3:.1f} ms and may take {wish.gap * 1e3:.1f} ms.")
    if not plan.ttft_met and wish.ttft is not None:
        lines.append(
            f"A prompt of {wish.prompt:,} tokens takes {plan.prefill:.2f} s alone and its first token is wanted "
            f"after {wish.ttft:.2f} s."
        )
    return lines


def nearest(plan: Plan) -> list[str]:
    """For a wish that cannot be met: the nearest ones that can."""
    wish, memory = plan.wish, plan.memory
    if memory.spare <= 0:
        return [f"at least {-(-memory.fixed // 10**9)} GB a device, or weights of fewer bits"]
    found = []
    if not plan.fits:
        if plan.most_requests:
            found.append(f"{plan.most_requests:,} requests at {plan.speed.context:,} tokens")
        if plan.longest_context:
            count = max(wish.requests, 1)
            found.append(f"{count} request{'s' * (count != 1)} at {plan.longest_context:,} tokens")
    if not plan.gap_met and plan.gap_batch:
        found.append(f"{plan.gap_batch:,} requests at {plan.speed.context:,} tokens within the gap")
    return found


def changes(plan: Plan, tried: Sequence[tuple[str, Callable[[], Plan]]]) -> list[Change]:
    """The changes that help, the best first. tried: in words, and the plan with it."""
    found = []
    for what, make in tried:
        other = make()
        if plan.memory.spare <= 0 or not plan.fits:
            before, after = plan.most_requests, other.most_requests
            better = after / before if before else float(after > 0) * 10
            gain = f"{after:,} requests at {other.speed.context:,} tokens instead of {before:,}"
        else:
            better = other.speed.total_rate / plan.speed.total_rate
            gain = f"{other.speed.total_rate:,.0f} tokens a second instead of {plan.speed.total_rate:,.0f}"
        if better > 1.02:
            found.append(Change(what, gain, better))
    return sorted(found, key=lambda change: -change.better)


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
