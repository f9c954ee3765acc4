"""Attention over latents alone against its twins in torch: heads, widths, contexts, chosen keys, both cache types."""

from __future__ import annotations

import numpy as np
import pytest
from forced import Forced
from stepping import Run, Stepper

from octavo.backends import executor_for
from octavo.errors import EngineError
from octavo.program.builder import Builder
from octavo.program.latent import head_linear, index_topk, latent_attention, latent_write
from octavo.types import KVGroup
from octavo.weights.kinds import Tensor

native = pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")
VOCABULARY = 64
LENGTH = 1050  # two segments and a bit
CONTEXTS = (1, 2, 3, 17, 127, 128, 129, 511, 512, 513, 1050)
# (heads, dims of a value, rotated dims of a key, chosen keys: 0 all)
SHAPES = [
    (4, 32, 16, 0),
    (5, 64, 32, 0),
    (16, 96, 16, 0),
    (20, 32, 16, 0),
    (48, 64, 16, 0),
    (4, 32, 16, 24),
    (36, 64, 32, 140),
    (16, 32, 16, 700),
]
# Of the RMS of the result: bf16 rounds queries and weights to 8 bits, and what it reads of an i8 cache too.
ERROR = {"bf16": 6e-3, "i8": 8e-3}


class Twin:
    """The reference with every value in float32 and the caches as `kv`."""

    def __init__(self, kv: str) -> None:
        self.inner, self.kv = executor_for("reference", "float32"), kv
        self.open = self.inner.open

    def lower(self, program, kinds):
        return self.inner.lower(program, kinds, kv_dtype=self.kv)


def bits(values: np.ndarray) -> Tensor:
    """Whole numbers and bf16 values only: nothing is rounded."""
    return Tensor("bf16", values.shape, (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))


def program(heads, values, rotated, top_k):
    """All inputs hang on the token alone; the result as "logits". Scores of the index are small whole numbers, many of
    them equal, so that every executor chooses the same keys."""
    b = Builder("latent")
    rng = np.random.default_rng(heads * 1000 + values + top_k)
    tensors = {}

    def input_of(name, width, whole=False):
        b.embed(name, "token", b.weight(f"w{name}", (VOCABULARY, width), hf="", gguf=""))
        shape = (VOCABULARY, width)
        drawn = rng.integers(-2, 3, shape) if whole else rng.standard_normal(shape)
        tensors[f"w{name}"] = bits(drawn)
        return name

    group = b.group(KVGroup("full", "full"))
    cache = b.cache(group, "latents", values + rotated)
    kv = latent_write(b, "kv", (input_of("c", values), input_of("k", rotated)), cache)
    chosen = None
    if top_k:
        keys = b.cache(group, "index", 32)
        written = latent_write(b, "ikv", (input_of("ik", 32, True),), keys)
        q, w = input_of("iq", 9 * 32, True), input_of("iw", 9, True)
        chosen = index_topk(b, "idx", q, w, written, cache=keys, heads=9, top_k=top_k, scale=0.5)
    query = input_of("q", heads * values), input_of("qr", heads * rotated)
    latent_attention(
        b, "logits", query, kv, cache=cache, heads=heads, scale=1.5 * (values + rotated) ** -0.5, chosen=chosen
    )
    b.export("logits")
    return b.build(), tensors


def tokens(count):
    return tuple(np.random.default_rng(3).integers(0, VOCABULARY, count).tolist())


@pytest.mark.parametrize("kv", ["bf16", "i8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_those_of_the_twin(shape, kv):
    if kv == "i8" and shape[3]:
        pytest.skip("scores of whole numbers are exact in bf16 alone")
    model, length = program(*shape), LENGTH if shape[0] < 30 else 300
    want = Stepper(Twin(kv), *model, length=1056).prompt(tokens(length))
    rms = np.sqrt(np.mean(want**2))
    for isa in native.usable_isas():
        steps = Stepper(Forced(isa, 2, kv), *model, length=1056)
        got = steps.prompt(tokens(length))
        for context in (each for each in CONTEXTS if each <= length):
            error = np.sqrt(np.mean((got[context - 1] - want[context - 1]) ** 2)) / rms
            assert error < ERROR[kv], (isa, context, error)
        # A row decoded alone, its tasks cut otherwise, has the same bits; so have rows of other tiles and threads.
        for context in (each for each in (2, 129, 513, 1050) if each <= length):
            at = context - 1
            again = steps.step(Run(0, at, (tokens(context)[-1],), no_write=(0,)))
            assert np.array_equal(again[0], got[at]), (isa, context)
        assert np.array_equal(Stepper(Forced(isa, 3, kv), *model, length=1056).prompt(tokens(70), chunk=7), got[:70])


def test_requests_share_nothing():
    model = program(16, 96, 16, 0)
    alone, together = (Stepper(Forced(native.usable_isas()[-1], 2), *model) for _ in range(2))
    for slot in range(4):
        alone.prompt(tokens(150), slot=slot)
        together.prompt(tokens(150), slot=slot)
    runs = [Run(slot, 149 - 7 * slot, (slot + 5,), no_write=(0,)) for slot in range(4)]
    assert np.array_equal(together.step(*runs), np.concatenate([alone.step(run) for run in runs]))


@pytest.mark.parametrize("kv", ["bf16", "i8"])
@pytest.mark.parametrize("top_k", [0, 24])
def test_drafts_of_a_tree_see_their_own_path(top_k, kv):
    """Each has the bits of its path computed in a row; then the accepted branch is moved into place and read there."""
    model, prefix = program(4, 32, 16, top_k), tokens(40)
    # Behind 3 and 7: 5 and 9 under 7, 11 under 9, 2 under 5.
    drafts, parents = (3, 7, 5, 9, 11, 2), (-1, -1, 1, 1, 3, 2)
    paths = ((3,), (3, 7), (3, 7, 5), (3, 7, 9), (3, 7, 9, 11), (3, 7, 5, 2))
    for isa in native.usable_isas():
        steps = Stepper(Forced(isa, 2, kv), *model)
        steps.prompt(prefix, slot=0)
        got = steps.step(Run(0, 40, drafts, parents=parents))
        for row, path in zip(got, paths, strict=True):
            assert np.array_equal(row, steps.prompt((*prefix, *path), slot=1)[-1]), (isa, path)
        moved = steps.step(Run(0, 44, (13,)), copies=[(0, 43, 42), (0, 44, 43)])
        assert np.array_equal(moved[0], steps.prompt((*prefix, 3, 7, 9, 11, 13), slot=1)[-1]), isa


@pytest.mark.parametrize("top_k", [1, 5, 40, 41])
def test_lists_are_ascending_and_ties_go_to_the_lower_place(top_k):
    """Values are one-hot by token place, scores of attention equal: the result shows which places were chosen."""
    b, rng = Builder("index"), np.random.default_rng(top_k)
    tensors = {}

    def input_of(name, table):
        b.embed(name, "token", b.weight(f"w{name}", table.shape, hf="", gguf=""))
        tensors[f"w{name}"] = bits(table)
        return name

    group = b.group(KVGroup("full", "full"))
    cache, keys = b.cache(group, "latents", 80), b.cache(group, "index", 16)
    kv = latent_write(b, "kv", (input_of("c", np.eye(64)), input_of("k", np.zeros((64, 16)))), cache)
    index = {name: rng.integers(-1, 2, (64, width)) for name, width in (("ik", 16), ("iq", 8 * 16), ("iw", 8))}
    written = latent_write(b, "ikv", (input_of("ik", index["ik"]),), keys)
    q, w = input_of("iq", index["iq"]), input_of("iw", index["iw"])
    idx = index_topk(b, "idx", q, w, written, cache=keys, heads=8, top_k=top_k, scale=1.0)
    query = input_of("q", np.zeros((64, 64))), input_of("qr", np.zeros((64, 16)))
    latent_attention(b, "logits", query, kv, cache=cache, heads=1, scale=1.0, chosen=idx)
    b.export("logits")
    model = b.build(), tensors
    ids = tuple(range(41))
    products = np.einsum("thd,sd->ths", index["iq"].reshape(64, 8, 16), index["ik"])
    scores = (np.maximum(products, 0) * index["iw"][:, :, None]).sum(1)
    assert any(len(set(scores[t, : t + 1])) <= t for t in range(41)), "some scores must be equal"
    for executor in (Twin("bf16"), *(Forced(isa, 2) for isa in native.usable_isas())):
        got = Stepper(executor, *model, length=128).prompt(ids)
        for t in range(41):
            best = sorted(range(t + 1), key=lambda s: (-scores[t, s], s))[:top_k]
            assert np.flatnonzero(got[t]).tolist() == sorted(best), (executor, t)


def test_a_list_of_all_keys_has_the_bits_of_no_list():
    """As long as a row sees no more keys than the index may choose, gathered and dense are one numerics."""
    dense, tensors = program(4, 32, 16, 0)
    listed, more = program(4, 32, 16, 24)
    more = more | {name: tensor for name, tensor in tensors.items() if name in more}
    for isa in native.usable_isas():
        want = Stepper(Forced(isa, 2), dense, tensors).prompt(tokens(60))
        got = Stepper(Forced(isa, 2), listed, more).prompt(tokens(60))
        assert np.array_equal(got[:24], want[:24])
        assert not np.array_equal(got[24:], want[24:])


def test_i8_codes_and_scales_are_those_of_the_twin_to_the_bit():
    """Among them a group of zeros, one with a single huge value, and values that fall between two codes."""
    plain, tensors = program(4, 32, 16, 0)
    rows = (tensors["wc"].data.astype(np.uint32) << 16).view(np.float32).copy()
    rows[1, :16], rows[2, 16:32], rows[2, 20] = 0.0, 0.0, 3e30
    rows[3, :16] = np.arange(16) * 0.5 - 3
    tensors["wc"] = bits(rows)
    ids = tuple(range(16))
    twin = Stepper(Twin("i8"), plain, tensors, slots=1, length=16)
    twin.prompt(ids)
    want = twin.session.pages.entries["latents"][1].numpy()
    assert want.shape == (16, 48 + 3 * 4)
    for isa in native.usable_isas():
        steps = Stepper(Forced(isa, 2, "i8"), plain, tensors, slots=1, length=16)
        steps.prompt(ids)
        assert np.array_equal(steps.session.cache_bytes()[1][: want.size].reshape(want.shape), want), isa


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("size", [(3, 32, 64), (5, 96, 32)], ids=str)
def test_each_head_meets_its_own_matrix(size, rows):
    heads, m, n = size
    b, rng = Builder("heads"), np.random.default_rng(m)
    b.embed("x", "token", b.weight("wx", (VOCABULARY, heads * n), hf="", gguf=""))
    head_linear(b, "logits", "x", b.weight("w", (heads * m, n), hf="", gguf=""), heads=heads)
    b.export("logits")
    tensors = {"wx": bits(rng.standard_normal((VOCABULARY, heads * n))), "w": bits(rng.standard_normal((heads * m, n)))}
    model = b.build(), tensors
    want = Stepper(Twin("bf16"), *model).prompt(tokens(rows))
    for isa in native.usable_isas():
        got = Stepper(Forced(isa, 2), *model).prompt(tokens(rows))
        assert np.abs(got - want).max() < 1e-4 * want.std()
        assert np.array_equal(Stepper(Forced(isa, 3), *model).prompt(tokens(rows), chunk=1), got)


def test_matrices_that_are_no_whole_panels_are_refused():
    b = Builder("heads")
    b.embed("x", "token", b.weight("wx", (VOCABULARY, 64), hf="", gguf=""))
    head_linear(b, "logits", "x", b.weight("w", (40, 32), hf="", gguf=""), heads=2)
    b.export("logits")
    tensors = {"wx": bits(np.ones((VOCABULARY, 64))), "w": bits(np.ones((40, 32)))}
    with pytest.raises(EngineError, match="logits: 2 matrices of 20 x 32 are not whole panels"):
        Stepper(Forced(native.usable_isas()[0]), b.build(), tensors)
