"""Random blocks of the formats, and equality to the bit."""

from __future__ import annotations

import gguf
import numpy as np

TYPES = {
    name: getattr(gguf.GGMLQuantizationType, name)
    for name in (
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        *("IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0"),
    )
}


def random_blocks(name: str, rows: int, columns: int, seed: int) -> np.ndarray:
    """Bytes of `rows` rows: any bits at all, so that scales are also zero, subnormal, infinite and NaN."""
    block, width = gguf.GGML_QUANT_SIZES[TYPES[name]]
    return np.random.default_rng(seed).integers(0, 256, (rows, columns // block * width), dtype=np.uint8)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit; any NaN equals any NaN."""
    a, b = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)
    return a.shape == b.shape and bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))
