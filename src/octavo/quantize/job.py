"""One run of `octavo quantize`: opens the model, chooses sizes, lets the scheme write, puts the result in place."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import torch

from octavo.errors import UnsupportedError, UsageError
from octavo.quantize import Progress, blockwise, packing
from octavo.quantize.calibrated import PACKERS, ROUNDERS
from octavo.quantize.calibration import walk, windows
from octavo.quantize.folder import Folder, folder_name
from octavo.quantize.layers import sharings
from octavo.quantize.outputs import beside, check_room
from octavo.quantize.scheme import GROUP_SIZES, SCHEMES, Order, Report, Written
from octavo.quantize.subject import Subject
from octavo.weights.fetch import resolve

LEAST_ROWS = 8  # rows come in words of eight codes


def run(order: Order, progress: Progress) -> Report:
    """Raises UnsupportedError for what a scheme cannot write, UsageError for a place or a size that does not fit."""
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    scheme, path = SCHEMES[order.scheme], resolve(order.model)
    with closing(Subject(path)) as subject, beside(order.out) as target:
        before = sum(subject.checkpoint.file_bytes(name) for name in subject.checkpoint.headers)
        check_room(order.out, before)
        if scheme.calibrated:
            written, group, tokens = _calibrated(subject, order, target, progress)
        else:
            write = blockwise.gguf if subject.checkpoint.format == "gguf" else blockwise.folder
            if order.group not in (None, blockwise.GROUP):
                raise UsageError(f"{order.scheme}: groups are of {blockwise.GROUP} columns", param="group_size")
            written = list(write(subject, target, scheme.bits, progress))
            group, tokens = blockwise.GROUP, 0
        size = sum(file.stat().st_size for file in ([target] if target.is_file() else target.rglob("*")))
        return Report(tuple(written), size, before, group, tokens)


def _calibrated(subject: Subject, order: Order, target: Path, progress: Progress) -> tuple[list[Written], int, int]:
    if target.suffix == ".gguf":
        raise UsageError(f"{order.out}: {order.scheme} writes a folder of safetensors", param="out")
    shared, scheme = sharings(subject, order.scheme), order.scheme
    shapes: dict[str, tuple[int, int]] = {}
    for name, weight in subject.matrices.items():
        m, n = weight.shape
        if m % LEAST_ROWS or n % LEAST_ROWS:
            raise UnsupportedError(
                f"{subject.path}: {name} is {m} x {n}; {scheme} takes multiples of 8", param="scheme"
            )
        shapes[name] = m, n
    if not shapes:
        raise UnsupportedError(f"{subject.path}: holds no matrix that {scheme} quantizes", param="scheme")
    group = 0 if scheme == "smoothquant" else _group(order, [n for _, n in shapes.values()])
    texts = windows(subject, order.text, order.tokens)
    specs = {
        folder_name(subject, name): packing.specs(PACKERS[scheme], shape, group or shape[1])
        for name, shape in shapes.items()
    }
    changed = {folder_name(subject, name) for one in shared.values() for name in one.vectors}
    with Folder(subject, target, specs, changed) as out:
        out.state(QUANTIZATION[scheme](group) | ({"ignore": out.kept_matrices} if scheme == "smoothquant" else {}))
        rounder = ROUNDERS[scheme](subject, shared, out, group, progress)
        walk(subject, texts, rounder.weight, rounder.watch)
    return rounder.written, group, sum(map(len, texts))


def _group(order: Order, columns: list[int]) -> int:
    """Columns of a scale."""
    sizes = GROUP_SIZES if order.group is None else (order.group,)
    for size in sizes:
        if size >= 16 and not any(n % size for n in columns):
            return size
    odd = next(n for n in columns if n % sizes[-1] or sizes[-1] < 16)
    raise UnsupportedError(f"groups of {sizes[-1]} columns do not divide {odd}", param="group_size")


def _gptq(group: int) -> dict[str, object]:
    stated = {"bits": 4, "group_size": group, "sym": True, "desc_act": False, "lm_head": False}
    return {"quant_method": "gptq", "checkpoint_format": "gptq", **stated}


def _awq(group: int) -> dict[str, object]:
    stated = {"bits": 4, "group_size": group, "zero_point": True, "modules_to_not_convert": None}
    return {"quant_method": "awq", "version": "gemm", **stated}


def _smoothquant(group: int) -> dict[str, object]:
    eaten = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    one = {"targets": ["Linear"], "weights": blockwise.weights_of(8, "channel", None), "input_activations": eaten}
    stated = {"format": "int-quantized", "quantization_status": "compressed"}
    return {"quant_method": "compressed-tensors", **stated, "config_groups": {"group_0": one}}


QUANTIZATION = {"gptq": _gptq, "awq": _awq, "smoothquant": _smoothquant}
