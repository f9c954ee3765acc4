"""Medusa heads (arXiv 2401.10774): each guesses one of the tokens to come from the state that gave the last one.

Head k, of K, eats the target's last hidden state: x = x + SiLU(W x + b), m times, then a matrix to the vocabulary; it
guesses the (k + 2)nd token after the state's, whatever stands between. A path has the product of the chances that the
heads give its tokens; a step takes those of the likeliest that are worth their rows (tree.py). No caches: one run over
the rows that sampled, and nothing else.

config.json: medusa_num_heads, medusa_num_layers, medusa_tree_nodes. Tensors: "{k}.{i}.linear.weight", ".bias" of the
blocks, "{k}.{m}.weight", also behind "medusa_head."; d2t (folder.py) where the heads have a vocabulary of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp

from octavo.drafters.drawn import Picked
from octavo.drafters.folder import HeadFolder
from octavo.drafters.head import HeadDrafter
from octavo.drafters.likely import Choice, likeliest, width
from octavo.drafters.port import DraftRow, DraftSession
from octavo.drafters.target import Target
from octavo.drafters.tree import Tree, grow
from octavo.program.builder import Builder
from octavo.program.ir import Program
from octavo.request import Row

NAME = "medusa"
PREFIX = "medusa_head."  # of checkpoints that hold the target too
NODES = 16  # of a tree at most, where config.json says nothing
MOST_NODES, MOST_HEADS, MOST_LAYERS = 63, 16, 8
RANKS = 8  # choices of a head in the tree


class MedusaDrafter(HeadDrafter):
    def __init__(self, folder: HeadFolder, target: Target, *, adaptive: bool = True) -> None:
        """Raises ConfigError, BadFileError for what is no set of Medusa heads of this target."""
        super().__init__(folder, target.config.verify, adaptive=adaptive)
        self.taps: tuple[str, ...] = (target.hidden,)
        program, vocab = _program(folder, target)
        self.programs: Mapping[str, Program] = {NAME: program}
        folder.join(self.programs.values(), {}, ("model.", "lm_head."))
        self._ids = folder.target_ids(vocab, target.model.vocab_size)
        self._heads = len(program.exports)
        self.max_draft = self.tail = folder.count("medusa_tree_nodes", NODES, MOST_NODES)

    def _trees(self, session: DraftSession, rows: Sequence[DraftRow], least: Sequence[float]) -> list[Tree]:
        session.run(NAME, [_one(row) for row in rows], [row.last for row in rows])
        count = width((row.request for row in rows), RANKS)
        found = [likeliest(session.logits(f"{NAME}.{head}"), range(len(rows)), count) for head in range(self._heads)]
        choices = zip(*found, strict=True)
        return [self._tree(*each) for each in zip(rows, choices, least, strict=True)]

    def _tree(self, row: DraftRow, found: Sequence[Sequence[Choice]], least: float) -> Tree:
        """found: the choices of each head."""
        picked = [self._draws.pick(of_head, row, depth, self._ids, RANKS, depth) for depth, of_head in enumerate(found)]
        nodes = grow([_shares(each) for each in picked], self.max_draft, least)
        choices = [picked[node.depth].choices[node.rank] for node in nodes]
        drawn = [picked[node.depth].chances for node in nodes] if self._draws.wanted(row.request) else ()
        chances: list[float] = []
        for node, (_, logprob) in zip(nodes, choices, strict=True):
            chances.append(exp(logprob) * (chances[node.parent] if node.parent >= 0 else 1.0))
        return Tree([token for token, _ in choices], [node.parent for node in nodes], chances, drawn)


def _shares(picked: Picked) -> list[float]:
    """By which a tree grows: the chances of choices; of draws, whatever they are, those of the likeliest."""
    if picked.chances is None:
        return [exp(logprob) for _, logprob in picked.choices]
    return sorted(picked.chances.values(), reverse=True)[: len(picked.choices)]


def _program(folder: HeadFolder, target: Target) -> tuple[Program, int]:
    """Exports "medusa.{k}" f32 [R, W], W the vocabulary of the heads. Raises ConfigError, BadFileError."""
    hidden = target.model.hidden_size
    heads = folder.count("medusa_num_heads", None, MOST_HEADS)
    layers = folder.count("medusa_num_layers", 1, MOST_LAYERS)
    width, eaten = folder.shape(*_named(f"0.{layers}.weight"))
    folder.fits("hidden states", eaten, hidden)
    b = Builder(NAME)
    state = b.take(f"{NAME}.state", b.feed(target.hidden, hidden), "logit_row")
    for head in range(heads):
        x, at = state, f"{NAME}.{head}"
        for layer in range(layers):
            x = folder.block(b, f"{at}.{layer}", f"{at}.{layer}", x, hidden, *_named(f"{head}.{layer}.linear"))
        last = folder.weight(b, f"{at}.out", (width, hidden), *_named(f"{head}.{layers}.weight"))
        b.linear(at, x, last)
        b.export(at)
    return b.build(), width


def _named(key: str) -> tuple[str, str]:
    return key, PREFIX + key


def _one(row: DraftRow) -> Row:
    """A row of one token: the heads know of no place."""
    return Row(row.request.id, row.row.slot, 0, (row.result.token_ids[-1],), 0, True)
