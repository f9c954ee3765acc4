"""Other rules than equality by which drafts are accepted (`--verify`), over what a Spot tells of the target.

    residual  a draft x that was drawn from q is accepted with the chance min(1, p(x)/q(x)); what comes instead is drawn
              from max(0, p - q) (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). Siblings were
              drawn without replacement: after each refusal p becomes that rest, q what is left of q (arXiv 2305.09781).
    block     chains that were drawn: the longest prefix is accepted jointly (arXiv 2403.10444), never fewer drafts in
              expectation; trees as under residual.
    typical   x is accepted where p(x) > min(EPSILON, DELTA exp(-H)), H the entropy of what the model says at the
              request's temperature (Medusa, arXiv 2401.10774). Outputs are no longer distributed as without drafts.

A draft that nobody drew has a q of one point: it is accepted with the chance p(x), and else p without x is what comes.
To draw from p and to see whether that is x is the same, so equality is the rule of such drafts, siblings too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

EPSILON, DELTA = 0.09, 0.3
TINY = 1e-9  # of a mass: beneath it nothing but rounding is left

Chances = Mapping[int, float]  # token -> its chance; others have none


class Spot(Protocol):
    """The target's distribution after one token, as its request changes it."""

    @property
    def choice(self) -> int:
        """What plain decoding takes."""

    def chance(self, token: int, least: float = 0.0) -> float:
        """May be told as 0 where it is not above `least`."""

    def apart(self, tokens: Chances) -> int:
        """A draw from the distribution without these tokens; some mass lies outside them."""

    def uniform(self) -> float:
        """A fresh number in [0, 1)."""

    def entropy(self) -> float: ...


@dataclass(frozen=True)
class Tree:
    """Node 0 is the last known token, node i the i-th draft; parents and chances by draft. chances: what it was drawn
    from, siblings all told the first one's; None for a draft that nobody drew."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    chances: tuple[Chances | None, ...]

    @cached_property
    def children(self) -> Mapping[int, list[int]]:
        found: dict[int, list[int]] = {}
        for draft, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(draft + 1)
        return found

    @property
    def chain(self) -> bool:
        return all(parent == draft for draft, parent in enumerate(self.parents))


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: accepted nodes, each the parent of the next. token: what follows the last of them."""

    path: tuple[int, ...]
    token: int


Rule = Callable[[Tree, Callable[[int], Spot]], Verdict]


def residual(tree: Tree, at: Callable[[int], Spot]) -> Verdict:
    path: list[int] = []
    while True:
        node = path[-1] if path else 0
        here, children = at(node), tree.children.get(node, ())
        tokens = [tree.tokens[child - 1] for child in children]
        drawn = tree.chances[children[0] - 1] if children else None
        if drawn is None:
            token = here.choice
            place = tokens.index(token) if token in tokens else None
        else:
            place, token = _tried(here, tokens, drawn)
        if place is None:
            return Verdict(tuple(path), token)
        path.append(children[place])


def _tried(here: Spot, tokens: Sequence[int], drawn: Chances) -> tuple[int | None, int]:
    """The first of these draws that is accepted, or what comes instead of all."""
    left: dict[int, float] | None = None  # p where q has any mass, after refusals
    outside = 1.0  # and elsewhere
    q = dict(drawn)
    for place, token in enumerate(tokens):
        most = here.uniform() * q.get(token, 0.0)
        p = here.chance(token, most) if left is None else left.get(token, 0.0)
        if p > most:
            return place, token
        if left is None:
            left = {other: here.chance(other) for other in q}
            outside = max(1.0 - sum(left.values()), 0.0)
        left = {other: max(p - q.get(other, 0.0), 0.0) for other, p in left.items()}
        mass = outside + sum(left.values())
        if mass < TINY:
            return None, here.choice
        left, outside = {other: p / mass for other, p in left.items()}, outside / mass
        rest = 1.0 - q.pop(token, 0.0)
        q = {other: chance / rest for other, chance in q.items()} if rest > TINY else {}
    return None, _drawn(here, left or {}, outside)


def _drawn(here: Spot, inside: Chances, outside: float) -> int:
    """inside: masses by token; outside: that of all others, spread as p is."""
    at = here.uniform() * (outside + sum(inside.values()))
    for token, mass in inside.items():
        if at < mass:
            return token
        at -= mass
    return here.apart(inside) if outside > 0 else max(inside, key=lambda token: inside[token])


def block(tree: Tree, at: Callable[[int], Spot]) -> Verdict:
    """h of a prefix: min(1, h of the one before x p/q). A prefix of all drafts is accepted with the chance h, a shorter
    one with rho / (rho + 1 - h), rho the mass of max(0, h p - q) after it, which is also what comes then."""
    drafts = len(tree.tokens)
    known = [chances for chances in tree.chances if chances is not None]
    if not drafts or not tree.chain or len(known) < drafts:
        return residual(tree, at)
    h = [1.0]
    for draft, token in enumerate(tree.tokens):
        q = known[draft].get(token, 0.0)
        p = at(draft).chance(token) if h[-1] > 0 else 0.0
        h.append(min(1.0, h[-1] * p / q) if q > 0 else float(p > 0) * h[-1])
    if at(drafts).uniform() < h[drafts]:
        return Verdict(tuple(range(1, drafts + 1)), at(drafts).choice)
    for length in range(drafts - 1, -1, -1):
        if h[length] == 0:
            continue
        here, q_next = at(length), known[length]
        p_next = {token: here.chance(token) for token in q_next}
        inside = {token: max(h[length] * p - q_next[token], 0.0) for token, p in p_next.items()}
        outside = h[length] * max(1.0 - sum(p_next.values()), 0.0)
        rho = outside + sum(inside.values())
        short = rho + 1.0 - h[length]
        if length == 0 or short < TINY or here.uniform() * short < rho:
            token = _drawn(here, inside, outside) if rho > TINY else here.choice
            return Verdict(tuple(range(1, length + 1)), token)
    raise AssertionError("the empty prefix is always accepted")


def typical(tree: Tree, at: Callable[[int], Spot]) -> Verdict:
    """The longest path of accepted drafts, of equal ones the likeliest; then what plain decoding takes."""
    best: tuple[int, float] = (0, 0.0)
    paths: dict[int, tuple[tuple[int, ...], float]] = {0: ((), 0.0)}
    chosen: tuple[int, ...] = ()
    least: dict[int, float] = {}
    for draft, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent not in paths:
            continue
        if parent not in least:
            least[parent] = min(EPSILON, DELTA * math.exp(-at(parent).entropy()))
        p = at(parent).chance(token, least[parent])
        if p > least[parent]:
            before, score = paths[parent]
            path = (*before, draft + 1)
            paths[draft + 1] = path, score + math.log(p)
            if (len(path), score + math.log(p)) > best:
                best, chosen = (len(path), score + math.log(p)), path
    return Verdict(chosen, at(chosen[-1] if chosen else 0).choice)


RULES: Mapping[str, Rule] = {"residual": residual, "block": block, "typical": typical}
