"""Verification by equality: a draft is accepted iff it is the token that the target samples at the draft's parent.

The target's choice is a function of (seed, index, id), so the accepted path with the token after it is what plain
decoding would have produced, for chains and for trees. A *node* is a token of the row from the last known token (the
root) on. The token sampled at a node of depth k has index: index of the root + k + 1, wherever the draft is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.request import Row
from octavo.sampling.sampler import Sampled


@dataclass(frozen=True, slots=True)
class Node:
    """offset: in row.token_ids. index: of the token sampled here. extra_ids: the drafts from the root to here."""

    offset: int
    index: int
    extra_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """accepted: offsets in row.token_ids, in path order. sampled: the accepted tokens and one more, as sampled."""

    accepted: tuple[int, ...]
    sampled: tuple[Sampled, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(sample.token_id for sample in self.sampled)

    @property
    def finite(self) -> bool:
        return all(sample.finite for sample in self.sampled)


def nodes(row: Row) -> list[Node]:
    """The root and each draft, in the row's order: one per logits row from the root on. Parents precede children."""
    root = len(row.token_ids) - row.num_drafts - 1
    found = {root: Node(root, row.start + root + 1, ())}
    for draft in range(row.num_drafts):
        offset = root + 1 + draft
        parent = found[row.parents[draft] if row.parents else offset - 1]
        found[offset] = Node(offset, parent.index + 1, (*parent.extra_ids, row.token_ids[offset]))
    return list(found.values())


def walk(row: Row, sample: Callable[[Node], Sampled]) -> Verified:
    """Samples at the root and at each accepted draft only. The first of equal siblings is taken; a bad row ends it."""
    tree = nodes(row)
    children: dict[int, list[Node]] = {node.offset: [] for node in tree}
    for node in tree[1:]:
        draft = node.offset - tree[0].offset - 1
        children[row.parents[draft] if row.parents else node.offset - 1].append(node)
    accepted: list[int] = []
    sampled: list[Sampled] = []
    here: Node | None = tree[0]
    while here is not None:
        choice = sample(here)
        sampled.append(choice)
        matches = (child for child in children[here.offset] if row.token_ids[child.offset] == choice.token_id)
        here = next(matches, None)
        if here is not None:
            accepted.append(here.offset)
    return Verified(tuple(accepted), tuple(sampled))


def verify(row: Row, sampled: Sequence[Sampled]) -> Verified:
    """`sampled`: one per node, in the order of nodes(row)."""
    root = len(row.token_ids) - row.num_drafts - 1
    return walk(row, lambda node: sampled[node.offset - root])
