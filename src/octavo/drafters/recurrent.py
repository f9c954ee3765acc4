"""The recurrent drafter (ReDrafter, arXiv 2403.09919): a small network goes on from the target's last state by itself.

h is the target's last hidden state, t_0 the token that it gave. s_0 = 0, s_j = SiLU(W emb(t_{j-1}) + U s_{j-1} + b), or
without the network s_j = s_{j-1} + emb(t_{j-1}), emb being the target's embedding. Logits for the j-th draft: [h; s_j],
projected where the file has input_proj, then n times x + SiLU(W x + b), then a matrix to the vocabulary. A beam search
over them, of some width and length, gives paths; those that begin alike share nodes of a tree. Beams end where what
they promise is not worth another run.

Two programs: the first step reads the target's states, each further one those of the step before it; weights are
shared, and there is no cache.

config.json: rnn, num_draft_layers, beam_width, beam_length. Tensors: lm_head.{i}.linear.{weight,bias},
lm_head.{n}.weight, rnn_w.weight, rnn_u.{weight,bias}, input_proj.*; d2t (folder.py) where the drafter has a vocabulary
of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

from octavo.drafters.folder import HeadFolder
from octavo.drafters.head import HeadDrafter
from octavo.drafters.likely import likeliest, width
from octavo.drafters.port import DraftRow, DraftSession
from octavo.drafters.target import Target, shared
from octavo.drafters.tree import Tree
from octavo.errors import UnsupportedError
from octavo.program.builder import Builder
from octavo.program.ir import Program
from octavo.request import Row
from octavo.sampling.rules import Chances

NAME = "recurrent"
FIRST, NEXT = f"{NAME}.first", f"{NAME}.next"
WIDTH, LENGTH = 3, 4  # of beams, where config.json says nothing
MOST_WIDTH, MOST_LENGTH, MOST_LAYERS = 16, 8, 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """D hidden and S state make the input of the head, of width `inner` once projected. vocab: the drafter's own."""

    rnn: bool
    hidden: int
    state: int
    inner: int
    projected: bool
    layers: int
    vocab: int
    width: int
    length: int


@dataclass(frozen=True, slots=True)
class Beam:
    """A path and its log-probability. row: of the last run, where the states of its end are."""

    score: float
    token_ids: tuple[int, ...]
    row: int


@dataclass(slots=True)
class Search:
    """Of one request. beams: the likeliest paths of the last length, those alone that may go on to drafts worth their
    rows. chances: of all paths that were beams. sure: the chance that one of `beams` comes true; promised: that so does
    one a token longer, were the next token as sure as the last. drawn: what the last token of each path was drawn from,
    where tokens are drawn: several after the root, then one after each path."""

    row: DraftRow
    least: float
    beams: list[Beam]
    chances: dict[tuple[int, ...], float] = field(default_factory=dict)
    sure: float = 1.0
    promised: float = 1.0
    drawn: dict[tuple[int, ...], Chances] = field(default_factory=dict)

    def grow(self, beams: Sequence[Beam]) -> None:
        self.chances |= {beam.token_ids: exp(beam.score) for beam in beams}
        self.beams = [beam for beam in beams if exp(beam.score) > self.least]
        sure = sum(exp(beam.score) for beam in self.beams)
        self.sure, self.promised = sure, sure * sure / self.sure


class RecurrentDrafter(HeadDrafter):
    def __init__(self, folder: HeadFolder, target: Target, *, adaptive: bool = True) -> None:
        """Raises ConfigError, BadFileError, UnsupportedError for what is no recurrent drafter of this target."""
        super().__init__(folder, target.config.verify, adaptive=adaptive)
        self.taps: tuple[str, ...] = (target.hidden,)
        sizes = _sizes(folder, target)
        self.programs: Mapping[str, Program] = {name: _program(folder, target, sizes, name) for name in (FIRST, NEXT)}
        embedding, _ = target.embedding
        folder.join(self.programs.values(), {embedding.name: embedding})
        self._ids = folder.target_ids(sizes.vocab, target.model.vocab_size)
        limits = target.config
        self._most_rows = min(limits.max_num_batched_tokens, limits.max_logit_rows)
        self._sizes = sizes
        self._seconds = 0.0  # of a run and what is made of it
        self.max_draft = self.tail = sizes.width * sizes.length

    def _trees(self, session: DraftSession, rows: Sequence[DraftRow], least: Sequence[float]) -> list[Tree]:
        """Beams as wide as a run has rows for, and as long as a further run is worth its time."""
        wide = max(min(self._sizes.width, self._most_rows // len(rows)), 1)
        found = [Search(row, each, [Beam(0.0, (), row.last)]) for row, each in zip(rows, least, strict=True)]
        live = found
        for depth in range(self._sizes.length):
            begun = time.perf_counter()
            self._level(session, live, wide, depth, len(rows))
            seconds = time.perf_counter() - begun
            self._seconds = 0.8 * self._seconds + 0.2 * seconds if self._seconds else seconds
            live = [search for search in live if search.beams]
            promised = {search.row.request.id: search.promised for search in live}
            if not live or not self._worth.pays(promised, self._seconds, len(rows), session):
                break
        return [drawn_tree(search) if search.drawn else tree(search.chances, search.least) for search in found]

    def _level(self, session: DraftSession, live: Sequence[Search], wide: int, depth: int, requests: int) -> None:
        """The beams of these, a token longer."""
        name = NEXT if depth else FIRST
        behind = requests if depth > 1 else 0  # rows of a further step are numbered on behind those of the first
        session.run(name, [_run_row(search) for search in live], [behind + b.row for s in live for b in s.beams])
        count = width((search.row.request for search in live), wide)
        choices = likeliest(session.logits(f"{name}.logits"), range(sum(len(s.beams) for s in live)), count)
        first = 0
        for search in live:
            row, size, after = search.row, len(search.beams), list[Beam]()
            draws = self._draws.wanted(row.request)
            most = 1 if draws and depth else wide
            for place, beam in enumerate(search.beams, first):
                picked = self._draws.pick(
                    choices[place], row, depth, self._ids, most, depth * MOST_WIDTH + place - first
                )
                for token, logprob in picked.choices:
                    after.append(Beam(beam.score + logprob, (*beam.token_ids, token), place))
                    if picked.chances is not None:
                        search.drawn[after[-1].token_ids] = picked.chances
            search.grow(after if draws else sorted(after, key=lambda beam: -beam.score)[:wide])
            first += size


def tree(chances: Mapping[tuple[int, ...], float], least: float) -> Tree:
    """Paths as nodes: tokens, parents, chances above `least`, the likeliest first. Every path's beginning is there."""
    kept = sorted((path for path in chances if chances[path] > least), key=lambda path: (-chances[path], len(path)))
    places = {(): -1} | {path: place for place, path in enumerate(kept)}
    return Tree([path[-1] for path in kept], [places[path[:-1]] for path in kept], [chances[path] for path in kept])


def drawn_tree(search: Search) -> Tree:
    """All paths, as they were drawn."""
    kept, drawn = list(search.drawn), list(search.drawn.values())
    places = {(): -1} | {path: place for place, path in enumerate(kept)}
    chances = [search.chances[path] for path in kept]
    return Tree([path[-1] for path in kept], [places[path[:-1]] for path in kept], chances, drawn)


def _run_row(search: Search) -> Row:
    """A row of the ends of its beams, of which each program is told the token alone."""
    row = search.row
    last = row.result.token_ids[-1]
    ends = tuple(beam.token_ids[-1] if beam.token_ids else last for beam in search.beams)
    return Row(row.request.id, row.row.slot, 0, ends, 0, True)


def _sizes(folder: HeadFolder, target: Target) -> Sizes:
    """Raises ConfigError, BadFileError, UnsupportedError."""
    fields, hidden = folder.fields, target.model.hidden_size
    rnn = fields.get("rnn")
    if not isinstance(rnn, bool):
        what = f"{folder.path}: rnn {rnn!r}: a recurrent drafter's is true, or false for a sum of embeddings"
        raise UnsupportedError(what, param="rnn")
    width = folder.count("beam_width", WIDTH, MOST_WIDTH)
    length = folder.count("beam_length", LENGTH, MOST_LENGTH)
    layers = folder.count("num_draft_layers", None, MOST_LAYERS)
    vocab, inner = folder.shape(f"lm_head.{layers}.weight")
    state = folder.shape("rnn_u.weight")[0] if rnn else hidden
    if rnn:
        folder.fits("embeddings", folder.shape("rnn_w.weight")[1], hidden)
    projected = folder.has("input_proj.weight")
    eaten = folder.shape("input_proj.weight")[1] if projected else inner
    folder.fits("hidden states", eaten - state, hidden)
    return Sizes(rnn, hidden, state, inner, projected, layers, vocab, width, length)


def _program(folder: HeadFolder, target: Target, sizes: Sizes, at: str) -> Program:
    """Exports "{at}.logits" f32 [R, vocab], and for the next step h [T, D] and "{at}.s" [T, S]."""
    b = Builder(at)
    embedding, scale = target.embedding
    old = None
    if at == FIRST:
        h = b.feed(target.hidden, sizes.hidden)
    else:
        h = b.feed(_fed(target.hidden), sizes.hidden, FIRST, then=((_fed(_fed(target.hidden)), NEXT),))
        old = b.feed(f"{FIRST}.s", sizes.state, FIRST, then=((f"{NEXT}.s", NEXT),))
    state = f"{at}.s"
    e = b.embed(f"{at}.e" if sizes.rnn or old else state, "token", shared(b, embedding), scale=scale)
    s = _cell(b, folder, sizes, state, e, old)
    b.export(h)
    b.export(s)
    x = b.take(f"{at}.x", b.concat(f"{at}.hs", h, s), "logit_row")
    if sizes.projected:
        proj = folder.weight(b, f"{NAME}.proj", (sizes.inner, sizes.hidden + sizes.state), "input_proj.weight")
        biased = folder.has("input_proj.bias")
        bias = folder.weight(b, f"{NAME}.proj_bias", (sizes.inner,), "input_proj.bias") if biased else None
        x = b.linear(f"{at}.xp", x, proj, bias)
    for layer in range(sizes.layers):
        x = folder.block(b, f"{NAME}.{layer}", f"{at}.{layer}", x, sizes.inner, f"lm_head.{layer}.linear")
    last = folder.weight(b, f"{NAME}.out", (sizes.vocab, sizes.inner), f"lm_head.{sizes.layers}.weight")
    b.linear(f"{at}.logits", x, last)
    b.export(f"{at}.logits")
    return b.build()


def _fed(name: str) -> str:
    """What a feed of this export is called."""
    return f"{name}.fed"


def _cell(b: Builder, folder: HeadFolder, sizes: Sizes, out: str, e: str, old: str | None) -> str:
    """[T, S]: the state after the token whose embedding is `e`, which itself is `out` where nothing is done to it.
    old: the state before; None: zeros."""
    if not sizes.rnn:
        return e if old is None else b.add(out, old, e)
    w = folder.weight(b, f"{NAME}.w", (sizes.state, sizes.hidden), "rnn_w.weight")
    bias = folder.weight(b, f"{NAME}.b", (sizes.state,), "rnn_u.bias")
    if old is None:
        return b.act(out, b.linear(f"{out}.w", e, w, bias), act="silu")
    u = folder.weight(b, f"{NAME}.u", (sizes.state, sizes.state), "rnn_u.weight")
    total = b.add(f"{out}.wu", b.linear(f"{out}.w", e, w), b.linear(f"{out}.u", old, u, bias))
    return b.act(out, total, act="silu")
