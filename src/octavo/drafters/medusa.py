"""Medusa heads (arXiv 2401.10774): each guesses one of the tokens to come from the state that gave the last one.

Head k, of K, eats the target's last hidden state: x = x + SiLU(W x + b), m times, then a matrix to the vocabulary; it
guesses the (k + 2)nd token after the state's. What several heads hold likely makes a static tree: the paths whose
product of accuracies (config.json, medusa_accuracies: per head how often its first, second, ... choice is right) is
largest. Of it a step takes the nodes that are worth their rows by what the heads hold likely there (tree.py). No
caches: one run over the rows that sampled, and nothing else.

config.json: medusa_num_heads, medusa_num_layers, medusa_tree_nodes. Tensors: "{k}.{i}.linear.weight", ".bias" of the
blocks, "{k}.{m}.weight", also behind "medusa_head."; d2t (folder.py) where the heads have a vocabulary of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp

from octavo.drafters.folder import HeadFolder
from octavo.drafters.head import HeadDrafter
from octavo.drafters.likely import Choice, in_order, likeliest, width
from octavo.drafters.port import DraftRow, DraftSession
from octavo.drafters.target import Target
from octavo.drafters.tree import Node, Tree, grow
from octavo.errors import ConfigError
from octavo.program.builder import Builder
from octavo.program.ir import Program
from octavo.request import Row

NAME = "medusa"
PREFIX = "medusa_head."  # of checkpoints that hold the target too
NODES = 16  # of a tree, where config.json says nothing
MOST_NODES, MOST_HEADS, MOST_LAYERS = 63, 16, 8
RANKS = 8  # choices of a head in the tree
# Of the first head's choices where config.json says nothing; every further head is right so much less often.
ACCURACIES, FURTHER = (0.5, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01), 0.7


class MedusaDrafter(HeadDrafter):
    def __init__(self, folder: HeadFolder, target: Target, *, adaptive: bool = True) -> None:
        """Raises ConfigError, BadFileError for what is no set of Medusa heads of this target."""
        super().__init__(folder, adaptive=adaptive)
        self.taps: tuple[str, ...] = (target.hidden,)
        program, vocab = _program(folder, target)
        self.programs: Mapping[str, Program] = {NAME: program}
        folder.join(self.programs.values(), {}, ("model.", "lm_head."))
        self._ids = folder.target_ids(vocab, target.model.vocab_size)
        self._nodes = _tree(folder, heads=len(program.exports))
        self._heads = max(node.depth for node in self._nodes) + 1
        self.max_draft = self.tail = len(self._nodes)

    def _trees(self, session: DraftSession, rows: Sequence[DraftRow], least: Sequence[float]) -> list[Tree]:
        session.run(NAME, [_one(row) for row in rows], [row.last for row in rows])
        count = width((row.request for row in rows), RANKS)
        found = [likeliest(session.logits(f"{NAME}.{head}"), range(len(rows)), count) for head in range(self._heads)]
        choices = zip(*found, strict=True)
        return [self._tree(*each) for each in zip(rows, choices, least, strict=True)]

    def _tree(self, row: DraftRow, found: Sequence[Sequence[Choice]], least: float) -> Tree:
        """found: the choices of each head."""
        request = row.request
        index = request.num_tokens + len(row.result.token_ids)
        choices = [in_order(of_head, request, index + depth, self._ids, RANKS) for depth, of_head in enumerate(found)]
        kept: dict[int, int] = {-1: -1}  # place of a node in the tree -> in the proposal
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        for place, node in enumerate(self._nodes):
            if node.parent not in kept or node.rank >= len(choices[node.depth]):
                continue
            token, logprob = choices[node.depth][node.rank]
            parent = kept[node.parent]
            chance = exp(logprob) * (chances[parent] if parent >= 0 else 1.0)
            if chance <= least:
                continue
            kept[place] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            chances.append(chance)
        return tokens, parents, chances


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


def _tree(folder: HeadFolder, heads: int) -> list[Node]:
    """Raises ConfigError for accuracies that are not lists of chances."""
    most = folder.count("medusa_tree_nodes", NODES, MOST_NODES)
    stated = folder.fields.get("medusa_accuracies")
    if stated is None:
        return grow([[chance * FURTHER**head for chance in ACCURACIES] for head in range(heads)], most)
    sound = isinstance(stated, list) and stated and all(isinstance(row, list) and row for row in stated)
    if not sound or not all(type(chance) in (int, float) and 0 <= chance <= 1 for row in stated for chance in row):
        raise ConfigError(
            f"{folder.path}: medusa_accuracies must hold a list of chances for each head", param="medusa_accuracies"
        )
    return grow([sorted(row, reverse=True)[:RANKS] for row in stated[:heads]], most)


def _one(row: DraftRow) -> Row:
    """A row of one token: the heads know of no place."""
    return Row(row.request.id, row.row.slot, 0, (row.result.token_ids[-1],), 0, True)
