"""Quantization methods of config.json, one a file, and the weights that they make of a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo.weights.catalogue import TensorHeader
from octavo.weights.methods.awq import AWQ
from octavo.weights.methods.compressed_tensors import CompressedTensors
from octavo.weights.methods.fp8 import FP8
from octavo.weights.methods.gptq import GPTQ
from octavo.weights.methods.llm_int8 import LLMInt8
from octavo.weights.methods.method import Joined, Method, Parts, bad, refuse
from octavo.weights.methods.mxfp4 import MXFP4

METHODS: Mapping[str, Callable[[Mapping[str, Any]], Method]] = {
    "gptq": GPTQ,
    "awq": AWQ,
    "compressed-tensors": CompressedTensors,
    "fp8": FP8,
    "fbgemm_fp8": FP8,
    "mxfp4": MXFP4,
    "bitsandbytes": LLMInt8,
}
# Ends of names that only a quantization method explains.
MARKS = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".SCB", "_blocks")


def method_of(config: Mapping[str, Any]) -> Method | None:
    """What quantization_config states. Raises ConfigError for a method that is not one of METHODS."""
    stated = config.get("quantization_config")
    if not stated:
        return None
    if not isinstance(stated, dict):
        refuse("quant_method", "the table is none", "bad_config")
    name = stated.get("quant_method")
    if name is None and (stated.get("load_in_8bit") or stated.get("load_in_4bit")):
        name = "bitsandbytes"
    if not isinstance(name, str) or name not in METHODS:
        refuse("quant_method", f"{str(name)[:40]!r} is not one of {', '.join(METHODS)}")
    return METHODS[name](stated)


def join(
    method: Method | None, headers: Mapping[str, TensorHeader], load: Callable[[str], Any]
) -> tuple[dict[str, TensorHeader], dict[str, Joined]]:
    """(tensors that stand for themselves, weight name -> what several tensors make)."""
    plain, made = dict(headers), dict[str, Joined]()
    for name in headers:
        suffix = next((end for end in method.suffixes if name.endswith(end)), None) if method else None
        if method is None or suffix is None:
            continue
        stem = name[: -len(suffix)]
        weight = method.joined(stem, Parts(stem, headers, load))
        if weight is not None:
            made[weight.header.name] = weight
    for weight in made.values():
        for part in weight.parts:
            plain.pop(part, None)
    if method is not None:
        plain = {name: header for name, header in plain.items() if not name.endswith(method.unused)}
    strays = [name for name in plain if name.endswith(MARKS)]
    if strays:
        bad("quant_mixed", strays[0], "is of a quantization that quantization_config does not state")
    return plain, made


__all__ = ["METHODS", "Joined", "Method", "Parts", "join", "method_of"]
