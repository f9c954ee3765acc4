"""Linear kernels over records of integer activations: exact against integers, one set of bits in every class.

v: the integers of a row, d: their scales; records are laid out as native/activation.h says.
"""

import numpy as np
import pytest
from test_linear import (
    AVAILABLE,
    FLOATS,
    GLU,
    I8G32,
    I15,
    I15G32,
    ISAS,
    SCHEMES,
    Weight,
    address,
    columns_of,
    from_bf16,
    native,
    run,
)

I8ROW, I8X, I15Q = 4, 5, 6
KINDS = {"i15": I15, "i8g32": I8G32, "i15g32": I15G32, "i15q": I15Q, "i8row": I8ROW, "i8x": I8X}
PLANES = {I15: 2, I8G32: 1, I15G32: 2, I15Q: 2, I8ROW: 2, I8X: 2}
MOST = {I15: 16383, I8G32: 127, I15G32: 16383, I15Q: 16383, I8ROW: 127, I8X: 16383}
BY_ROW = (I15, I8ROW, I8X)
ROWS = (1, 2, 3, 4, 15, 16, 17, 32, 33)
INTEGERS = [name for name, scheme in SCHEMES.items() if scheme["kind"] not in ("f32", "bf16", "fp8")]
POSITIONS = [0, 2, 4, 6, 1, 3, 5, 7]  # where each of eight columns stands


def stride(kind: int, width: int) -> int:
    return -(-width // 32) * native.linear_record_bytes(kind)


def quantized(isa: str, kind: int, x: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(x, np.float32)
    out = np.full((len(x), stride(kind, x.shape[1])), 0xAA, np.uint8)
    native.linear_quantize(ISAS[isa], kind, address(x), *x.shape, address(out), out.shape[1])
    return out


def taken_apart(kind: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """v int64 [T, padded n] and d float32 [T, blocks]. The sums beside them must be those of v."""
    planes = PLANES[kind]
    records = rows.reshape(len(rows), -1, native.linear_record_bytes(kind))
    plane = [
        records[:, :, 32 * i : 32 * i + 32].reshape(*records.shape[:2], 4, 8)[..., POSITIONS] for i in range(planes)
    ]
    v = plane[0].view(np.int8).astype(np.int64)
    if planes == 2:
        assert (plane[1] < 128).all()
        v = 128 * v + plane[1]
    v = v.reshape(*records.shape[:2], 32)
    side = np.ascontiguousarray(records[:, :, 32 * planes :]).view(np.int32)
    sums = np.stack((v.sum(-1), v[..., :16].sum(-1), v[..., 16:].sum(-1)), -1)
    assert np.array_equal(-side[..., :3], sums) and np.array_equal(side[..., 4:7].copy().view(np.float32), sums)
    light = side[..., 7] == 1
    assert not side[..., 7][~light].any() and (kind == I15Q or not light.any()) and not (v[light] % 128).any()
    return v.reshape(len(rows), -1), side[..., 3].copy().view(np.float32)


def values(kind: int, rows: np.ndarray, width: int) -> np.ndarray:
    v, d = taken_apart(kind, rows)
    return (v * np.repeat(d.astype(np.float64), 32, 1))[:, :width]


def light_blocks(tops: np.ndarray) -> np.ndarray:
    """Of i15q, tops [T, blocks, 1] of at most 512 blocks a row: those below the quarter, rounded up, of the largest."""
    heavy = -(-tops.shape[1] // 4)
    return tops < np.sort(tops, 1)[:, -heavy:][:, :1]


def data(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Rows of unequal size, among them a zero one and one with an outlier."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)).astype(np.float32) * rng.uniform(0.01, 30, (rows, 1)).astype(np.float32)
    x[rows // 2] = 0
    x[-1, width // 2] = 3000
    return x


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("width", [1, 31, 32, 45, 576])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_quantize_is_its_formula_in_every_class(kind: int, width: int, isa: str) -> None:
    x = data(9, width)
    v, d = taken_apart(kind, quantized(isa, kind, x))
    blocks = np.pad(x, ((0, 0), (0, -width % 32))).reshape(9, -1, 32)
    top = np.abs(blocks).max((1, 2) if kind in BY_ROW else 2, keepdims=True)
    most = np.full_like(top, MOST[kind])
    if kind == I8X:
        usual = np.where(np.abs(blocks) < 6, np.abs(blocks), 0).max((1, 2), keepdims=True)
        apart = (usual > 0) & (usual / np.float32(127) >= top / most)
        top, most = np.where(apart, usual, top), np.where(apart, np.float32(127), most)
        assert width < 31 or apart.any()
    if kind == I15Q:
        light = light_blocks(top)
        most = np.where(light, np.float32(127), most)
        assert light.any() == (width > 32)
    with np.errstate(divide="ignore", invalid="ignore"):
        want = np.where(top > 0, np.rint(blocks * (most / top)), 0)
    unit = np.where(light, 128, 1) if kind == I15Q else np.ones_like(top)
    assert np.array_equal(v, (want * unit).reshape(9, -1))
    assert np.array_equal(d, np.broadcast_to(top / most / unit.astype(np.float32), (9, blocks.shape[1], 1))[..., 0])
    assert np.abs(v).max() == MOST[kind] or kind == I8X


@pytest.mark.parametrize("isa", AVAILABLE)
def test_outliers_of_a_row_leave_the_rest_their_scale(isa: str) -> None:
    """They are chosen by the row alone and keep a finer step than eight bits of theirs would have."""
    x = np.random.default_rng(0).uniform(-5, 5, (3, 64)).astype(np.float32)
    x[1, 7], x[2, 9] = 60, 6000
    v, d = taken_apart(I8X, quantized(isa, I8X, x))
    usual = np.abs(np.where(np.abs(x) < 6, x, 0)).max(1)
    assert np.array_equal(d.reshape(3, -1)[:2, 0], usual[:2] / np.float32(127)) and v[1, 7] > 1000
    assert np.isclose(v[2, 9] * float(d.reshape(3, -1)[2, 0]), 6000, rtol=1e-4) and v[2, 9] == 16383


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_quantize_of_what_is_no_number(kind: int, isa: str) -> None:
    """Not finite: the scale is NaN. Too small to divide by: zero. A denormal among numbers: zero."""
    x = np.zeros((5, 64), np.float32)
    x[:, 40] = [np.nan, -np.inf, 1e-31, 1e-38, 3e38]
    x[4, 41] = 1e-40
    v, d = taken_apart(kind, quantized(isa, kind, x))
    rest = 0 if kind in BY_ROW else 1
    assert np.isnan(d[:2, rest:]).all() and np.isfinite(d[:2, :rest]).all()
    assert not v[:4].any() and not d[2:4].any()
    assert v[4, 40] == MOST[kind] and v[4, 41] == 0 and np.isclose(v[4, 40] * float(d[4, 1]), 3e38)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("scheme", INTEGERS)
def test_near_float64_and_one_set_of_bits_for_all_classes_and_row_counts(scheme: str, kind: int) -> None:
    weight = Weight(m=70, n=columns_of(scheme, wide=True), **SCHEMES[scheme])
    rows = quantized("portable", kind, data(max(ROWS), weight.n))
    x = values(kind, rows, weight.n)
    want, size = x @ weight.values.T.astype(np.float64), np.abs(x) @ np.abs(weight.values).T
    first = run("portable", weight, rows, max(ROWS), kind=kind)
    # integers below 2^24 are exact in float32; i8 times i15 may round once more a block
    assert (np.abs(first - want) <= (weight.n / 16 + 4) * 2.0**-24 * size + 1e-30).all()
    for isa in AVAILABLE:
        for count in ROWS:
            got = run(isa, weight, rows[:count], count, kind=kind)
            assert np.array_equal(got.view(np.uint32), first[:count].view(np.uint32)), (isa, count)
        last = run(isa, weight, rows[-1:], 1, kind=kind)
        assert np.array_equal(last.view(np.uint32), first[-1:].view(np.uint32)), isa


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("m", [1, 31, 33, 65])
@pytest.mark.parametrize("scheme", INTEGERS)
def test_edge_sizes(scheme: str, m: int, isa: str) -> None:
    weight = Weight(m=m, n=columns_of(scheme, wide=False), **SCHEMES[scheme])
    for kind in KINDS.values():
        rows = quantized(isa, kind, data(3, weight.n))
        x = values(kind, rows, weight.n)
        bound = 2.0**-20 * (np.abs(x) @ np.abs(weight.values).T) + 1e-30
        assert (np.abs(run(isa, weight, rows, 3, kind=kind) - x @ weight.values.T.astype(np.float64)) <= bound).all()


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("n", [16, 35, 64, 544])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_extremes_do_not_overflow(kind: int, n: int, isa: str) -> None:
    """The largest weights of one sign, the largest activations of either: no sum leaves an int32."""
    group = 16 if n == 16 else n if n % 32 else 32
    for name, q, offset in (("i8", -128, 0), ("i8", 127, 0), ("i8", -128, 3), ("u4", 15, 0), ("u4", 0, 8)):
        if name == "u4" and n % 2:
            continue
        weight = Weight(name, 33, n, group=group, offset=offset)
        stored = np.full((33, n), q, np.int8) if name == "i8" else np.full((33, n // 2), q * 17, np.uint8)
        scale = np.full((33, n // group), 1, np.float16)
        args = (0 if name == "f32" else {"i8": 2, "u4": 3}[name], 33, n, group, offset, address(stored))
        weight.packed = native.linear_pack(*args, address(scale), 0, 0, 0, 0, 0)
        for sign in (1, -1):
            rows = quantized(isa, kind, np.full((5, n), sign, np.float32))
            want = values(kind, rows, n).sum(1) * (q - offset)
            got = run(isa, weight, rows, 5, kind=kind)
            assert np.allclose(got, want[:, None], rtol=1e-6, atol=0)


@pytest.mark.parametrize("isa", AVAILABLE)
def test_denormal_scales_are_zero_or_exact(isa: str) -> None:
    """Half-precision denormals are float32 numbers; a NaN of the activations reaches every output."""
    weight = Weight("i8", 33, 64, group=32)
    stored, scale = np.full((33, 64), 5, np.int8), np.full((33, 2), 2.0**-24, np.float16)
    weight.packed = native.linear_pack(2, 33, 64, 32, 0, address(stored), address(scale), 0, 0, 0, 0, 0)
    x = np.ones((2, 64), np.float32)
    x[1, 3] = np.nan
    got = run(isa, weight, quantized(isa, I15, x), 2, kind=I15)
    assert np.allclose(got[0], 320 * 2.0**-24, rtol=1e-6) and np.isnan(got[1]).all()


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("scheme", ["q8_0", "q4_1", "q6_k"])
def test_panel_partition_and_threads_change_no_bit(scheme: str, isa: str) -> None:
    weight = Weight(m=330, n=columns_of(scheme, wide=False), **SCHEMES[scheme])
    rows = quantized(isa, I15, data(19, weight.n))
    want = run(isa, weight, rows, 19, kind=I15, chunk=99)
    for chunk, threads in ((1, 1), (3, 1), (2, 2)):
        assert np.array_equal(run(isa, weight, rows, 19, kind=I15, chunk=chunk, threads=threads), want)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("output", [I8G32, I15G32], ids=["i8g32", "i15g32"])
@pytest.mark.parametrize("schemes", [("q4_1", "q4_1"), ("u4-64", "q8_0")])
def test_glu_quantizes_its_panels(schemes: tuple[str, str], output: int, isa: str) -> None:
    gate, up = (Weight(m=550, n=128, seed=i, **SCHEMES[s]) for i, s in enumerate(schemes))
    rows = quantized(isa, I15, np.random.default_rng(1).standard_normal((35, 128)))
    g, u = (run(isa, w, rows, 35, kind=I15).astype(np.float64) for w in (gate, up))
    want = g / (1 + np.exp(-np.clip(g, -80, 80))) * u
    options = {"second": up, "epilogue": GLU, "kind": I15, "output": output, "ldo": stride(output, 550)}
    out = run(isa, gate, rows, 35, **options)
    got = values(output, out, 550)
    step = np.abs(np.pad(want, ((0, 0), (0, 26)))).reshape(35, -1, 32).max(2) / MOST[output]
    assert (np.abs(got - want) <= 0.51 * np.repeat(step, 32, 1)[:, :550] + 1e-5 * np.abs(want)).all()
    assert not taken_apart(output, out)[0][:, 550:].any()
    for row in (0, 34):
        assert np.array_equal(run(isa, gate, rows[row : row + 1], 1, **options)[0], out[row])
    bf16 = run(isa, gate, rows, 35, second=up, epilogue=GLU, kind=I15, ldo=576)
    assert (np.abs(from_bf16(bf16[:, :550]) - want) <= np.abs(want) * 2.0**-8 + 1e-6).all()
    floats = run(isa, gate, rows, 35, second=up, epilogue=GLU, kind=I15, ldo=576, output=FLOATS)
    assert (np.abs(floats[:, :550] - want) <= 1e-5 * np.abs(want) + 1e-6).all() and np.isnan(floats[:, 550:]).all()
    assert np.array_equal(quantized(isa, output, floats[:, :550]), out)


@pytest.mark.parametrize("isa", AVAILABLE)
def test_heavy_blocks_are_chosen_by_the_row_alone(isa: str) -> None:
    """A quarter of each 512 blocks, rounded up, ties besides; an infinite one is heavy."""
    x = np.random.default_rng(4).uniform(1, 2, (6, 520 * 32)).astype(np.float32)
    x[1, 3 * 32] = np.inf
    x[2] = 1
    x[3, :] = 0
    rows = quantized(isa, I15Q, x)
    light = rows.reshape(6, 520, -1)[:, :, 92:].copy().view(np.int32)[..., 0] == 1
    assert not light[2:4].any() and not light[1, 3]
    for row in (0, 4, 5):
        assert light[row, :512].sum() == 384 and light[row, 512:].sum() == 6
        tops = x[row].reshape(1, 520, 32).max(2)[:, :512, None]
        assert np.array_equal(light[row, :512], light_blocks(tops)[0, :, 0])
        assert np.array_equal(quantized(isa, I15Q, x[row : row + 1])[0], rows[row])
    weight = Weight(m=33, n=520 * 32, **SCHEMES["q4_1"])
    want = run("portable", weight, rows, 6, kind=I15Q)
    for count in (1, 2, 3, 6):
        got = run(isa, weight, rows[:count], count, kind=I15Q)
        assert np.array_equal(got.view(np.uint32), want[:count].view(np.uint32))
