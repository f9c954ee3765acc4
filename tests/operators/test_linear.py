"""The native linear kernels with bf16 activations against float64, over weight kinds, scale codes, shapes, row counts
and classes. Integer activations: test_linear_integers.py.

T rows, m output channels, n columns. A bf16 array is uint16. Scales are drawn so that every product is a normal number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

native = pytest.importorskip("octavo._native", reason="the native part is not built")

ISAS = {"portable": 0, "avx2": 1, "avx512": 2, "amx": 3, "amx_model": 4}
# Tiles that fail their self-check are not used by the executor either: it falls back and says so.
AVAILABLE = [
    name for name, isa in ISAS.items() if native.isa_supported(isa) and (name != "amx" or native.isa_self_check(isa))
]
CANONICAL = [name for name in AVAILABLE if name != "avx512"]
KINDS = {"f32": 0, "bf16": 1, "i8": 2, "u4": 3, "nl4": 4, "fp4": 5, "fp8": 6, "u5": 7, "u6": 8}
TABLES = {
    "nl4": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    "fp4": (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
}
E4M3 = np.float32(
    [(1 - i // 128 * 2) * ((8 if i & 0x78 else 0) + i % 8) * 2.0 ** (max(i >> 3 & 15, 1) - 10) for i in range(256)]
)
CODES = ["f16", "u8", "i8", "f32", "e8m0"]  # of scales; u8 and i8 are two-level
STORE, ADD, GLU = 0, 1, 2
BF16, I15, I8G32, I15G32 = range(4)
FLOATS = -1  # of GLU
ROWS = (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 64)


def to_bf16(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


def address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data


@dataclass
class Weight:
    """A packed weight with its values in float32 (the format's own formula)."""

    kind: str
    m: int
    n: int
    group: int = 0
    offset: int = 0
    scale: str = "f16"
    biased: bool = False
    zero: bool = False
    seed: int = 0
    values: np.ndarray = field(init=False)
    file_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        m, n = self.m, self.n
        arrays: dict[str, np.ndarray | None] = dict.fromkeys(("scale", "bias", "super_scale", "super_bias"))
        if self.kind == "f32":
            data = rng.standard_normal((m, n), dtype=np.float32)
            self.values = data
        elif self.kind == "bf16":
            data = to_bf16(rng.standard_normal((m, n)))
            self.values = from_bf16(data)
        else:
            data = self._grouped(rng, arrays)
        self.file_bytes = data.nbytes + sum(a.nbytes for a in arrays.values() if a is not None)
        args = (KINDS[self.kind], m, n, self.group, self.offset, address(data))
        codes = (CODES.index(self.scale), 2 if self.zero else int(self.biased))
        self.packed = native.linear_pack(*args, *(address(a) for a in arrays.values()), *codes)

    def _grouped(self, rng: np.random.Generator, arrays: dict[str, np.ndarray | None]) -> np.ndarray:
        m, n, groups = self.m, self.n, self.n // self.group
        if self.kind == "i8":
            data = rng.integers(-128, 128, (m, n)).astype(np.int8)
            q = data.astype(np.float32)
        elif self.kind in ("u5", "u6"):
            data = rng.integers(0, 32 if self.kind == "u5" else 64, (m, n)).astype(np.uint8)
            q = data.astype(np.float32)
        elif self.kind == "fp8":
            data = np.delete(np.arange(256), [127, 255]).astype(np.uint8)[rng.integers(0, 254, (m, n))]
            q = E4M3[data]
        else:
            nibbles = rng.integers(0, 16, (m, n)).astype(np.uint8)
            data = np.ascontiguousarray(nibbles[:, 0::2] | nibbles[:, 1::2] << 4)
            q = np.array(TABLES[self.kind], np.float32)[nibbles] if self.kind in TABLES else nibbles.astype(np.float32)
        half = lambda shape: (rng.uniform(0.01, 0.05, shape) * rng.choice([-1, 1], shape)).astype(np.float16)  # noqa: E731
        if self.scale in ("u8", "i8"):
            low, high, dtype = (-32, 32, np.int8) if self.scale == "i8" else (0, 64, np.uint8)
            scales, supers = rng.integers(low, high, (m, groups)).astype(dtype), half((m, n // 256))
            biases, super_biases = rng.integers(0, 64, (m, groups)).astype(np.uint8), half((m, n // 256))
            spread = 256 // self.group
            scale = np.repeat(supers.astype(np.float32), spread, 1) * scales.astype(np.float32)
            bias = np.repeat(super_biases.astype(np.float32), spread, 1) * biases.astype(np.float32)
            arrays |= {"scale": scales, "super_scale": supers}
            if self.biased:
                arrays |= {"bias": biases, "super_bias": super_biases}
        else:
            arrays["scale"], halves = half((m, groups)), half((m, groups))
            if self.scale == "f32":
                arrays["scale"] = rng.uniform(0.01, 0.05, (m, groups)).astype(np.float32)
            if self.scale == "e8m0":
                arrays["scale"] = rng.integers(120, 126, (m, groups)).astype(np.uint8)
            scale, bias = arrays["scale"].astype(np.float32), halves.astype(np.float32)
            if self.scale == "e8m0":
                scale = np.float32(2) ** (scale - 128)
            if self.biased:
                arrays["bias"] = halves
        if self.zero:
            arrays["bias"] = rng.integers(-20, 20, (m, groups)).astype(np.int16)
            q = q - np.repeat(arrays["bias"], self.group, 1)
        self.values = np.repeat(scale, self.group, 1) * (q - np.float32(self.offset))
        if self.biased:
            self.values = self.values + np.repeat(bias, self.group, 1)
        return data


def rows_of(n: int, rows: int, seed: int = 7, poison: bool = True) -> np.ndarray:
    """bf16 rows, padded with zero columns to 32; the rows beyond `rows`, up to a multiple of 16, hold NaN."""
    x = np.zeros(((rows + 15) // 16 * 16, (n + 31) // 32 * 32), np.uint16)
    x[:, :n] = to_bf16(np.random.default_rng(seed).standard_normal((x.shape[0], n)))
    if poison:
        x[rows:] = 0x7FC0
    return x


def run(isa, weight, x, rows, *, kind=BF16, second=None, epilogue=STORE, act=0, bias=None, bias2=None, addend=None,
        chunk=4, threads=1, ldo=None, output=BF16):  # fmt: skip
    ldo = ldo or weight.m
    if output == FLOATS:
        out = np.full((rows, ldo), np.nan, np.float32)
    elif output != BF16:
        out = np.full((rows, ldo), 0xFF, np.uint8)
    else:
        out = np.full((rows, ldo), 0xFFFF, np.uint16) if epilogue == GLU else np.full((rows, ldo), np.nan, np.float32)
    native.linear_run(
        ISAS[isa], weight.packed, second and second.packed, kind, address(x), rows, x.shape[1], epilogue, act,
        address(bias), address(bias2), address(addend), output, address(out), ldo, chunk, threads,
    )  # fmt: skip
    return out


def exact(weight: Weight, x: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64 and the sum of |terms| that bounds its rounding error."""
    a, w = from_bf16(x[:rows, : weight.n]).astype(np.float64), weight.values.astype(np.float64)
    return a @ w.T, np.abs(a) @ np.abs(w).T


SCHEMES = {
    "f32": {"kind": "f32"},
    "bf16": {"kind": "bf16"},
    "q8_0": {"kind": "i8", "group": 32},
    "i8-bias": {"kind": "i8", "group": 32, "biased": True},
    "i8-16-offset": {"kind": "i8", "group": 16, "offset": 3},
    "q6_k": {"kind": "i8", "group": 16, "scale": "i8"},
    "q5_k": {"kind": "i8", "group": 32, "scale": "u8", "biased": True},
    "q4_0": {"kind": "u4", "group": 32, "offset": 8},
    "q4_1": {"kind": "u4", "group": 32, "biased": True},
    "u4-16": {"kind": "u4", "group": 16, "offset": 8},
    "u4-64": {"kind": "u4", "group": 64, "biased": True},
    "u4-128": {"kind": "u4", "group": 128, "offset": 8},
    "u4-zero": {"kind": "u4", "group": 64, "zero": True},
    "u4-f32-zero": {"kind": "u4", "group": 32, "scale": "f32", "zero": True},
    "i8-f32": {"kind": "i8", "group": 128, "scale": "f32"},
    "i8-e8m0": {"kind": "i8", "group": 32, "scale": "e8m0"},
    "q5_0": {"kind": "u5", "group": 32, "offset": 16},
    "q5_k-u5": {"kind": "u5", "group": 32, "scale": "u8", "biased": True},
    "q6_k-u6": {"kind": "u6", "group": 16, "scale": "i8", "offset": 32},
    "u6-64": {"kind": "u6", "group": 64, "zero": True},
    "iq4_xs": {"kind": "nl4", "group": 32, "scale": "i8"},
    "mxfp4": {"kind": "fp4", "group": 32, "scale": "e8m0"},
    "fp8-128": {"kind": "fp8", "group": 128, "scale": "f32"},
    "fp8-rows": {"kind": "fp8", "group": 192, "scale": "f32"},
    "q2_k": {"kind": "u4", "group": 16, "scale": "u8", "biased": True},
    "q4_k": {"kind": "u4", "group": 32, "scale": "u8", "biased": True},
}


def columns_of(scheme: str, wide: bool) -> int:
    base = 256 if SCHEMES[scheme].get("scale") in ("u8", "i8") else SCHEMES[scheme].get("group", 0) or 35
    return base * (5 if wide else 1)


def assert_near(got: np.ndarray, weight: Weight, x: np.ndarray, rows: int) -> None:
    want, size = exact(weight, x, rows)
    # integers are carried with an offset of up to 136 against values of a few: 32 times the plain bound
    bound = (32 if weight.kind in ("u4", "u5", "u6") else 2) * 2.0**-24 * weight.n**0.5 * size + 1e-6
    assert np.isfinite(got).all()
    assert (np.abs(got - want) <= bound).all()


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_near_float64_and_row_alone_equals_row_in_any_batch(scheme: str, isa: str) -> None:
    weight = Weight(m=70, n=columns_of(scheme, wide=True), **SCHEMES[scheme])
    full = rows_of(weight.n, max(ROWS), poison=False)
    alone = np.concatenate([run(isa, weight, rows_in(full, r, 1), 1) for r in range(max(ROWS))])
    assert_near(alone, weight, full, max(ROWS))
    for rows in ROWS:
        got = run(isa, weight, rows_in(full, 0, rows), rows)
        assert np.array_equal(got.view(np.uint32), alone[:rows].view(np.uint32)), rows


def rows_in(full: np.ndarray, first: int, rows: int) -> np.ndarray:
    """Rows [first, first + rows) alone, with NaN in the padding rows."""
    x = np.full(((rows + 15) // 16 * 16, full.shape[1]), 0x7FC0, np.uint16)
    x[:rows] = full[first : first + rows]
    return x


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("m", [1, 31, 32, 33, 65])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_edge_sizes(scheme: str, m: int, isa: str) -> None:
    weight = Weight(m=m, n=columns_of(scheme, wide=False), **SCHEMES[scheme])
    x = rows_of(weight.n, 3)
    assert_near(run(isa, weight, x, 3), weight, x, 3)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("n", [1, 15, 31, 32, 33, 63, 64, 65])
@pytest.mark.parametrize("kind", ["f32", "bf16", "i8"])
def test_any_number_of_columns(kind: str, n: int, isa: str) -> None:
    weight = Weight(kind, 33, n, group=n if kind == "i8" else 0)
    x = rows_of(n, 17)
    assert_near(run(isa, weight, x, 17), weight, x, 17)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_canonical_classes_agree_in_every_bit(scheme: str) -> None:
    weight = Weight(m=49, n=columns_of(scheme, wide=True), **SCHEMES[scheme])
    full = rows_of(weight.n, 33)
    want = run("portable", weight, full, 33).view(np.uint32)
    for isa in CANONICAL:
        for rows in (1, 15, 16, 17, 33):
            got = run(isa, weight, rows_in(full, 0, rows), rows).view(np.uint32)
            assert np.array_equal(got, want[:rows]), (isa, rows)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("scheme", ["bf16", "q8_0", "q4_1", "q4_k"])
def test_panel_partition_and_threads_change_no_bit(scheme: str, isa: str) -> None:
    weight = Weight(m=330, n=columns_of(scheme, wide=False), **SCHEMES[scheme])
    x = rows_of(weight.n, 19)
    want = run(isa, weight, x, 19, chunk=99)
    for chunk, threads in ((1, 1), (3, 1), (2, 2)):
        assert np.array_equal(run(isa, weight, x, 19, chunk=chunk, threads=threads), want)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("scheme", ["bf16", "q4_1", "q6_k"])
def test_no_tiles_stay_configured_on_the_calling_thread(scheme: str, isa: str) -> None:
    """AMX has them configured within a call alone, in groups of 16 columns too; the model computes nothing without."""
    weight = Weight(m=40, n=columns_of(scheme, wide=False), **SCHEMES[scheme])
    assert not native.tiles_held(ISAS[isa])
    for rows in (1, 33):
        x = rows_of(weight.n, rows)
        assert_near(run(isa, weight, x, rows, threads=1), weight, x, rows)
        assert not native.tiles_held(ISAS[isa])


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("rows", [1, 9, 33])
def test_bias_and_addend(rows: int, isa: str) -> None:
    weight = Weight(m=45, n=64, **SCHEMES["q4_0"])
    x, rng = rows_of(64, rows), np.random.default_rng(3)
    bias, addend = rng.standard_normal(45, dtype=np.float32), rng.standard_normal((rows, 45), dtype=np.float32)
    plain = run(isa, weight, x, rows)
    assert np.array_equal(run(isa, weight, x, rows, bias=bias), plain + bias)
    assert np.array_equal(run(isa, weight, x, rows, epilogue=ADD, addend=addend), addend + plain)
    assert np.array_equal(run(isa, weight, x, rows, epilogue=ADD, addend=addend, bias=bias), addend + (plain + bias))


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("act", [0, 1])
@pytest.mark.parametrize("schemes", [("q4_1", "q4_1"), ("bf16", "bf16"), ("u4-64", "q8_0"), ("bf16", "q4_0")])
def test_glu(schemes: tuple[str, str], act: int, isa: str) -> None:
    gate, up = (Weight(m=550, n=128, seed=i, **SCHEMES[s]) for i, s in enumerate(schemes))
    rng = np.random.default_rng(5)
    bias, bias2 = rng.standard_normal(550, dtype=np.float32), rng.standard_normal(550, dtype=np.float32)
    x = rows_of(128, 35)
    parts = [run(isa, w, x, 35, bias=b).astype(np.float64) for w, b in ((gate, bias), (up, bias2))]
    out = run(isa, gate, x, 35, second=up, epilogue=GLU, act=act, bias=bias, bias2=bias2, ldo=576)
    g, u = parts
    z = np.clip(g if act == 0 else 2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3), -80, 80)
    want = g / (1 + np.exp(-z)) * u
    got = from_bf16(out[:, :550]).astype(np.float64)
    assert (np.abs(got - want) <= np.abs(want) * 2.0**-8 + 1e-6).all()
    assert (out[:, 550:] == 0).all()
    for row in (0, 34):
        alone = run(isa, gate, rows_in(x, row, 1), 1, second=up, epilogue=GLU, act=act, bias=bias, bias2=bias2, ldo=576)
        assert np.array_equal(alone[0], out[row])


@pytest.mark.parametrize("isa", AVAILABLE)
def test_glu_saturates_and_rounds_to_even(isa: str) -> None:
    """Gate and up pass x through, so that chosen values reach the epilogue."""
    gate, up = Weight("f32", 32, 32), Weight("f32", 32, 32)
    eye, one = np.eye(32, dtype=np.float32), np.zeros((32, 32), np.float32)
    one[:, 31] = 1
    for weight, values in ((gate, eye), (up, one)):
        weight.packed = native.linear_pack(0, 32, 32, 0, 0, address(values), 0, 0, 0, 0, 0, 0)
    chosen = np.array([-1e30, -200, -90, -88, -20, -1, -1e-3, 0, 1e-3, 1, 20, 88, 90, 200, 1e30], np.float32)
    x = np.zeros((16, 32), np.uint16)
    x[0, : chosen.size], x[0, 31] = to_bf16(chosen), to_bf16(np.float32([1]))[0]
    g = from_bf16(x[0]).astype(np.float64)
    out = run(isa, gate, x, 1, second=up, epilogue=GLU)[0]
    want = g / (1 + np.exp(np.clip(-g, -700, 700)))
    assert (np.abs(from_bf16(out) - want) <= np.abs(want) * 2.0**-8 + np.abs(g) * 1e-37).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_unpacked_rows_are_exact(scheme: str) -> None:
    weight = Weight(m=37, n=columns_of(scheme, wide=True), **SCHEMES[scheme])
    out = np.empty(weight.n, np.float32)
    for row in (0, 15, 16, 31, 32, 36):
        native.linear_unpack_row(weight.packed, row, address(out))
        assert np.array_equal(out, weight.values[row])


@pytest.mark.parametrize(("scheme", "block_bytes"), [("q4_0", 18), ("q4_1", 20), ("q4_k", 144), ("q8_0", 34)])
def test_packed_bytes_stay_near_the_file(scheme: str, block_bytes: int) -> None:
    weight = Weight(m=3072, n=768, **SCHEMES[scheme])
    in_file = 3072 * 768 // (256 if scheme == "q4_k" else 32) * block_bytes
    assert weight.packed.nbytes >= weight.file_bytes
    assert weight.packed.nbytes <= 1.05 * in_file


@pytest.mark.parametrize("isa", AVAILABLE)
def test_self_check_passes(isa: str) -> None:
    assert native.isa_self_check(ISAS[isa])


@pytest.mark.parametrize(("n", "group", "words"), [(64, 24, "groups of 24"), (48, 24, "24 columns"), (48, 0, "groups")])
def test_impossible_groups_are_refused(n: int, group: int, words: str) -> None:
    data = np.zeros((32, n), np.int8)
    with pytest.raises(ValueError, match=words):
        native.linear_pack(KINDS["i8"], 32, n, group, 0, address(data), 0, 0, 0, 0, 0, 0)
