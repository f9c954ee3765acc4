"""Formats on disk, one a file, by the name that a tensor's header carries."""

from __future__ import annotations

from octavo.weights.schemes import (
    bf16,
    f16,
    f32,
    iq4_nl,
    iq4_xs,
    mxfp4,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
    tq1_0,
    tq2_0,
)
from octavo.weights.schemes.scheme import Scheme

SCHEMES: dict[str, Scheme] = {
    module.SCHEME.name: module.SCHEME
    for module in (
        *(f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k),
        *(iq4_nl, iq4_xs, mxfp4, tq1_0, tq2_0),
    )
}

__all__ = ["SCHEMES", "Scheme"]
