"""The attention operator alone against its twin in torch: head sizes, query groups, contexts, both cache types."""

import numpy as np
import pytest
from forced import Forced
from stepping import Run, Stepper

from octavo.backends import executor_for
from octavo.program.builder import Builder
from octavo.types import KVGroup
from octavo.weights.kinds import Tensor

native = pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")
VOCABULARY = 64
CONTEXTS = (1, 2, 17, 127, 128, 129, 511, 512, 513, 600)
# (head size, query heads per KV head, KV heads, window)
SHAPES = [
    (64, 3, 3, 0),
    (64, 8, 1, 0),
    (80, 1, 2, 0),
    (96, 5, 1, 200),
    (128, 4, 2, 0),
    (128, 16, 1, 0),
    (256, 2, 1, 0),
    (256, 7, 1, 130),
    (24, 6, 2, 0),
    (14, 12, 1, 33),
    (9, 2, 3, 0),
]
# Of the RMS of the result. bf16 rounds queries and weights to 8 bits; i8 rounds them to 15, and the twin not at all.
ERROR = {"bf16": 6e-3, "i8": 3e-4}


class Twin:
    """The reference with every value in float32 and the caches as `kv`."""

    def __init__(self, kv):
        self.inner, self.kv = executor_for("reference", "float32"), kv
        self.open = self.inner.open

    def lower(self, program, kinds):
        return self.inner.lower(program, kinds, kv_dtype=self.kv)


def program(d, group, kv_heads, window, sinks=0.0):
    """Queries, keys and values that hang on the token alone; the result as "logits"."""
    b = Builder("attention")
    for name, heads in (("q", group * kv_heads), ("k", kv_heads), ("v", kv_heads)):
        b.embed(name, "token", b.weight(f"w{name}", (VOCABULARY, heads * d), hf="", gguf=""))
    cached = b.group(KVGroup(f"window.{window}", "window", window) if window else KVGroup("full", "full"))
    caches = {"cache_k": b.cache(cached, "k_cache", kv_heads * d), "cache_v": b.cache(cached, "v_cache", kv_heads * d)}
    kv = b.kv_write("kv", "k", "v", **caches, kv_heads=kv_heads)
    sizes = {"heads": group * kv_heads, "kv_heads": kv_heads, "window": window}
    beside = b.weight("sinks", (group * kv_heads,), hf="", gguf="") if sinks else None
    b.attention("logits", "q", kv, **caches, **sizes, scale=1.5 * d**-0.5, sinks=beside)
    b.export("logits")
    plain = b.build()
    rng = np.random.default_rng(d * 100 + group)
    tensors = {}
    for name, weight in plain.weights.items():
        values = rng.standard_normal(weight.shape).astype(np.float32)
        if name == "sinks":
            tensors[name] = Tensor("f32", weight.shape, np.linspace(-sinks, sinks, len(values), dtype=np.float32))
            continue
        tensors[name] = Tensor("bf16", weight.shape, (values.view(np.uint32) >> 16).astype(np.uint16))
    return plain, tensors


def tokens(count):
    return tuple(np.random.default_rng(3).integers(0, VOCABULARY, count).tolist())


@pytest.mark.parametrize("kv", ["bf16", "i8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_those_of_the_twin(shape, kv):
    model = program(*shape)
    want = Stepper(Twin(kv), *model, length=640).prompt(tokens(max(CONTEXTS)))
    rms = np.sqrt(np.mean(want**2))
    for isa in native.usable_isas():
        steps = Stepper(Forced(isa, 2, kv), *model, length=640)
        got = steps.prompt(tokens(max(CONTEXTS)))
        for context in CONTEXTS:
            error = np.sqrt(np.mean((got[context - 1] - want[context - 1]) ** 2)) / rms
            assert error < ERROR[kv], (isa, context, error)
        # A row decoded alone, its tasks cut otherwise, has the same bits.
        for context in (129, 513, 600):
            at = context - 1
            again = steps.step(Run(0, at, (tokens(context)[-1],), no_write=(0,)))
            assert np.array_equal(again[0], got[at]), (isa, context)


@pytest.mark.parametrize("requests", [2, 4])
def test_many_requests_share_nothing(requests):
    """Several tiles: a task then takes several KV heads, alone it takes one."""
    model = program(64, 3, 3, 0)
    for kv in ("bf16", "i8"):
        alone, together = (Stepper(Forced(native.usable_isas()[-1], 2, kv), *model) for _ in range(2))
        for slot in range(requests):
            alone.prompt(tokens(200), slot=slot)
            together.prompt(tokens(200), slot=slot)
        runs = [Run(slot, 199 - 7 * slot, (slot + 5,), no_write=(0,)) for slot in range(requests)]
        want = np.concatenate([alone.step(run) for run in runs])
        assert np.array_equal(together.step(*runs), want)


def pages(memory, block, d, kv_heads, keys):
    """Codes [16 tokens, kv_heads, d] and scales [16, kv_heads] of one block of 16 tokens, by native/cache.h."""
    padded, order = -(-d // 16) * 16, (0, 2, 1, 3)
    one = 16 * padded + 64
    codes, scales = np.zeros((16, kv_heads, d), np.int8), np.zeros((16, kv_heads), np.float32)
    for head in range(kv_heads):
        begin = head * 2 * one + (0 if keys else one)
        page = memory[block, begin : begin + one]
        scales[:, head] = page[16 * padded :].view(np.float32)
        words = page[: 16 * padded].view(np.int8)
        words = words.reshape(-1, 16, 4) if keys else words.reshape(4, padded, 4)
        for token in range(16):
            for e in range(d):
                word, item = (words[e // 4, token], e % 4) if keys else (words[token // 4, e], token % 4)
                codes[token, head, e] = word[order[item]]
    return codes, scales


def test_i8_codes_and_scales_are_those_of_the_twin_to_the_bit():
    """Among them a head of zeros, one of a single huge value, and values that fall between two codes."""
    d, kv_heads = 24, 3
    plain, tensors = program(d, 2, kv_heads, 0)
    for name in ("wk", "wv"):
        rows = (tensors[name].data.astype(np.uint32) << 16).view(np.float32).copy()
        rows[1, :d], rows[2, d : 2 * d], rows[2, d + 5] = 0.0, 0.0, 3e30
        rows[3, :d] = np.arange(d) * 0.5 - 3
        tensors[name] = Tensor("bf16", rows.shape, (rows.view(np.uint32) >> 16).astype(np.uint16))
    ids = tuple(range(16))
    twin = Stepper(Twin("i8"), plain, tensors, slots=1, length=16)
    twin.prompt(ids)
    for isa in native.usable_isas():
        steps = Stepper(Forced(isa, 2, "i8"), plain, tensors, slots=1, length=16)
        steps.prompt(ids)
        for keys, name in ((True, "k_cache"), (False, "v_cache")):
            codes, scales = pages(steps.session.cache_bytes(), 1, d, kv_heads, keys)
            entry = twin.session.pages.entries[name][1].numpy()
            assert np.array_equal(codes.reshape(16, -1).view(np.uint8), entry[:, : d * kv_heads]), (isa, name)
            assert np.array_equal(scales, np.ascontiguousarray(entry[:, d * kv_heads :]).view(np.float32)), (isa, name)


@pytest.mark.parametrize("name", ["wk", "wv"])
def test_what_is_not_finite_stays_so_in_i8(name):
    """A key or value that overflowed shows in every row that sees it, and in no other."""
    plain, tensors = program(24, 2, 3, 0)
    rows = (tensors[name].data.astype(np.uint32) << 16).view(np.float32).copy()
    rows[7, 30] = np.inf if name == "wk" else np.nan
    tensors[name] = Tensor("bf16", rows.shape, (rows.view(np.uint32) >> 16).astype(np.uint16))
    for isa in native.usable_isas():
        got = Stepper(Forced(isa, 1, "i8"), plain, tensors).prompt((1, 2, 7, 3, 4)).reshape(5, 3, 48)
        assert np.isfinite(got[:2]).all() and np.isfinite(got[:, (0, 2)]).all(), isa
        assert not np.isfinite(got[2:, 1]).all(axis=-1).any(), isa


@pytest.mark.parametrize("kv", ["bf16", "i8"])
@pytest.mark.parametrize("shape", [(64, 8, 1, 128), (24, 3, 2, 0)], ids=str)
def test_sinks_stand_beside_the_scores(shape, kv):
    """From sinks that hardly count to ones that take nearly all; in parts or not, the same bits."""
    model = program(*shape, sinks=8.0)
    without = Stepper(Twin(kv), *program(*shape), length=640).prompt(tokens(600))
    want = Stepper(Twin(kv), *model, length=640).prompt(tokens(600))
    heads = np.linalg.norm(want.reshape(600, -1, shape[0]), axis=(0, 2)) / np.linalg.norm(
        without.reshape(600, -1, shape[0]), axis=(0, 2)
    )
    assert heads.min() < 0.5 and heads.max() > 0.9
    rms = np.sqrt(np.mean(without**2))
    for isa in native.usable_isas():
        steps = [Stepper(Forced(isa, threads, kv), *model, length=640) for threads in (1, 3)]
        got = steps[0].prompt(tokens(600))
        assert np.sqrt(np.mean((got - want) ** 2)) / rms < ERROR[kv]
        assert np.array_equal(steps[1].prompt(tokens(600), chunk=150), got)
        last = Run(0, 599, tokens(600)[599:], no_write=(0,))
        assert np.array_equal(steps[0].step(last), got[599:]) and np.array_equal(steps[1].step(last), got[599:])
