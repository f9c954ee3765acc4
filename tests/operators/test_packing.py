"""Rows packed straight from a file: the bytes of the panels are those of the tensor packed whole, for any pieces, order
of rows and number of threads."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from octavo.backends.native.executor import PANEL
from octavo.types import digest
from octavo.weights.kinds import KIND_NUMBERS
from octavo.weights.prepare import prepare
from octavo.weights.schemes import SCHEMES

native = pytest.importorskip("octavo._native", reason="the native part is not built")
COLUMNS = 768


def store(threads=2):
    """Weights of a session that runs nothing; the session stays alive with them."""
    return native.Session(0, 16, 16, 1, 4, 5, 16, threads, 0).weights


def blocks(name: str, rows: int) -> np.ndarray:
    elements, width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    seed = int.from_bytes(digest(name)[:4], "little")
    return np.random.default_rng(seed).integers(0, 256, rows * COLUMNS // elements * width, dtype=np.uint8)


def whole(tensor) -> tuple[list[int], bytes]:
    weights = store()
    held = [None if array is None else np.ascontiguousarray(array) for array in tensor.arrays]
    addresses = [0 if array is None else array.ctypes.data for array in held]
    codes = (tensor.group, tensor.offset, tensor.scale_code, tensor.bias_code)
    shape = [KIND_NUMBERS[tensor.kind], *tensor.shape, *codes]
    weights.make_room("w", shape)
    weights.fill("w", 0, shape, *addresses)
    return (list(weights.shape("w")), weights.data("w").tobytes())


def streamed(name, raw, rows, order=None, threads=2, step=1) -> tuple[list[int], bytes]:
    weights = store(threads)
    weights.reserve("w", name, rows, COLUMNS)
    panels = -(-rows // PANEL)
    for begin in range(0, panels, step):
        end = min(begin + step, panels)
        address = 0 if order is None else order.ctypes.data
        weights.pack("w", name, rows, COLUMNS, raw.ctypes.data, address, begin, end)
    return (list(weights.shape("w")), weights.data("w").tobytes())


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_pieces_and_threads_change_no_byte(name):
    rows = 3 * PANEL + 7
    raw = blocks(name, rows)
    want = whole(SCHEMES[name].unpack(raw, (rows, COLUMNS)))
    assert streamed(name, raw, rows, threads=1, step=4) == want
    assert streamed(name, raw, rows, threads=3, step=1) == want
    assert streamed(name, raw, rows, threads=2, step=3) == want
    changed = raw.copy()
    changed[-1] ^= 1
    assert streamed(name, changed, rows) != want or name == "F32"  # whose last bits are rounded away


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q6_K", "BF16"])
def test_rows_are_moved_on_the_way(name):
    rows, prep = 2 * PANEL + 16, (("unpermute_rope", 5),)
    raw = blocks(name, rows)
    tensor = SCHEMES[name].unpack(raw, (rows, COLUMNS))
    index = np.arange(rows, dtype=np.int32)
    order = np.ascontiguousarray(index.reshape(5, 8, 2).swapaxes(1, 2).reshape(-1))
    want = whole(prepare(tensor, prep))
    assert streamed(name, raw, rows, order, step=2) == want != whole(tensor)


def test_what_no_stream_can_hold_is_refused():
    with pytest.raises(ValueError, match="not whole blocks"):
        store().reserve("w", "Q4_K", 32, 128)
    with pytest.raises(ValueError, match="Q9_9 is not a format"):
        store().reserve("w", "Q9_9", 32, 256)


def test_the_sum_of_bytes_sees_every_bit_and_no_thread():
    data = np.random.default_rng(1).integers(0, 256, (3 << 20) + 5, dtype=np.uint8)
    want = native.checksum(data, 1)
    assert native.checksum(data, 3) == want
    for at in (0, 1 << 20, (2 << 20) + 13, len(data) - 1):
        changed = data.copy()
        changed[at] ^= 0x80
        assert native.checksum(changed, 2) != want
    assert native.checksum(data[:-1], 2) != want
    assert native.checksum(np.append(data, np.uint8(0)), 2) != want
