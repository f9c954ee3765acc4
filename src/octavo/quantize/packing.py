"""Codes as the tensors of published layouts: what weights/methods reads, the other way.

Legend: m rows, n columns, G groups. Words are int32, the first code in the lowest bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from octavo.quantize.rounding import Codes

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight rows stands in each nibble, lowest first
DTYPES = {torch.int32: "I32", torch.int64: "I64", torch.int8: "I8", torch.float16: "F16"}
Parts = Mapping[str, torch.Tensor]  # end of a name -> tensor


def words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """[r, n] of codes from 0 up -> int32 [r, n bits / 32]."""
    per = 32 // bits
    wide = codes.long().view(len(codes), -1, per) << (bits * torch.arange(per))
    total = wide.sum(-1)
    return torch.where(total >= 1 << 31, total - (1 << 32), total).to(torch.int32)


def gptq(codes: Codes) -> Parts:
    """Signed codes as AutoGPTQ writes them: up by 8; the zero point 8, less one."""
    m, n = codes.q.shape
    groups = codes.scale.shape[1]
    return {
        ".qweight": words(codes.q + 8, 4).T.contiguous(),
        ".qzeros": words(torch.full((groups, m), 7), 4),
        ".scales": codes.scale.T.contiguous().half(),
        ".g_idx": (torch.arange(n) // (n // groups)).to(torch.int32),
    }


def awq(codes: Codes) -> Parts:
    """Version gemm."""
    return {
        ".qweight": words(_awq_order(codes.q.T), 4),
        ".qzeros": words(_awq_order(codes.zero.T), 4),
        ".scales": codes.scale.T.contiguous().half(),
    }


def _awq_order(values: torch.Tensor) -> torch.Tensor:
    eights = values.reshape(len(values), -1, 8)[:, :, list(AWQ_ORDER)]
    return eights.reshape(values.shape)


def packed(codes: Codes, bits: int) -> Parts:
    """compressed-tensors, pack-quantized."""
    return {
        ".weight_packed": words(codes.q + (1 << bits - 1), bits),
        ".weight_scale": codes.scale.half(),
        ".weight_shape": torch.tensor(codes.q.shape, dtype=torch.int64),
    }


def bytewise(codes: Codes) -> Parts:
    """compressed-tensors, int-quantized."""
    return {".weight": codes.q.to(torch.int8), ".weight_scale": codes.scale.half()}


def specs(pack: Callable[[Codes], Parts], shape: tuple[int, int], group: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """End of a name -> (dtype, shape) of what `pack` makes of a matrix."""
    m, n = shape
    few = torch.zeros(1, dtype=torch.int16)
    empty = Codes(few.expand(m, n), torch.zeros(1).expand(m, n // group), few.expand(m, n // group))
    return {end: (DTYPES[part.dtype], tuple(part.shape)) for end, part in pack(empty).items()}


# ---- GGUF's blocks of 32
def q4_blocks(codes: Codes) -> Any:
    """Q4_0: uint8 [m, 18 n / 32]: a float16 scale, then 16 bytes; byte j has codes j and j + 16, up by 8."""
    m, groups = codes.scale.shape
    q = (codes.q + 8).to(torch.uint8).view(m, groups, 2, 16)
    return _blocks(codes, q[:, :, 0] | q[:, :, 1] << 4)


def q8_blocks(codes: Codes) -> Any:
    """Q8_0: uint8 [m, 34 n / 32]: a float16 scale, then 32 codes."""
    m, groups = codes.scale.shape
    return _blocks(codes, codes.q.to(torch.int8).view(torch.uint8).view(m, groups, 32))


def _blocks(codes: Codes, data: torch.Tensor) -> Any:
    scale = codes.scale.half().contiguous().view(torch.uint8).view(*codes.scale.shape, 2)
    return np.ascontiguousarray(torch.cat((scale, data), dim=-1).flatten(1).numpy())
