"""q4 and q8: each matrix by itself, in groups of 32, in the format that it comes in. A GGUF file becomes Q4_0 or Q8_0,
its head (and what it is tied to) Q8_0; a folder one of compressed-tensors, its head and embedding as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from octavo.errors import UnsupportedError, UsageError
from octavo.quantize import Progress, packing
from octavo.quantize.folder import Folder
from octavo.quantize.outputs import gguf_file
from octavo.quantize.rounding import Codes, nearest, symmetric
from octavo.quantize.scheme import Written
from octavo.quantize.subject import TURNED, Subject
from octavo.weights.catalogue import MappedFile
from octavo.weights.gguf import parse_gguf

GROUP = 32
BLOCKS = {4: ("Q4_0", packing.q4_blocks, 2), 8: ("Q8_0", packing.q8_blocks, 7)}  # bits -> type, packer, file_type


def written(name: str, bits: int, values: torch.Tensor, codes: Codes) -> Written:
    size = values.square().sum().clamp(min=1e-30).sqrt()
    error, plain = (
        float((held - values).square().sum().sqrt() / size) for held in (codes.values, nearest(values, bits, GROUP))
    )
    return Written(name, bits + 16 / GROUP, error, plain)


def gguf(subject: Subject, path: Path, bits: int, progress: Progress) -> Iterator[Written]:
    """Writes `path`."""
    if path.suffix != ".gguf":
        raise UsageError(f"{path.name}: of a GGUF file another one is made; end its name in .gguf", param="out")
    origin = subject.path if subject.path.is_file() else next(subject.path.glob("*.gguf"))
    file = MappedFile(origin)
    header = parse_gguf(file.bytes, str(origin))
    chosen = {name: wanted for name in header.headers if (wanted := _bits(subject, name, bits))}
    total, done = sum(header.headers[name].nbytes for name in chosen), 0
    dtypes = {name: BLOCKS[wanted][0] for name, wanted in chosen.items()}
    with gguf_file(path, header, file.bytes, dtypes, BLOCKS[bits][2]) as out:
        for name, one in header.headers.items():
            if name not in chosen:
                out.put(name, subject.checkpoint.raw(name))
                continue
            values = subject.stored_values(name).view(-1, one.shape[-1])
            codes = symmetric(values, chosen[name], GROUP)
            out.put(name, BLOCKS[chosen[name]][1](codes))
            yield written(name, chosen[name], values, codes)
            done += one.nbytes
            progress(done, total)
    file.close()


def _bits(subject: Subject, tensor: str, bits: int) -> int:
    """Of a tensor of the file; 0: as it is."""
    shape, users = subject.checkpoint.headers[tensor].shape, subject.users(tensor)
    if not users or len(shape) < 2 or shape[-1] % GROUP:
        return 0
    if users & subject.heads:
        return 8
    return bits if users <= {*subject.matrices} | subject.tables else 0


def folder(subject: Subject, path: Path, bits: int, progress: Progress) -> Iterator[Written]:
    """Writes `path`."""

    def pack(codes: Codes) -> packing.Parts:
        return packing.packed(codes, bits)

    chosen = [name for name in subject.checkpoint.headers if _whole_rows(subject, name)]
    if not chosen:
        raise UnsupportedError(f"{subject.path}: holds no matrix [rows, columns] in groups of {GROUP}", param="model")
    shapes: dict[str, Any] = {name: subject.checkpoint.headers[name].shape for name in chosen}
    total, done = sum(subject.checkpoint.file_bytes(name) for name in chosen), 0
    with Folder(subject, path, {name: packing.specs(pack, shape, GROUP) for name, shape in shapes.items()}) as out:
        out.state(stated(bits) | {"ignore": out.kept_matrices})
        for name in chosen:
            values = subject.stored_values(name)
            codes = symmetric(values, bits, GROUP)
            out.put(name, pack(codes))
            yield written(name, bits, values, codes)
            done += subject.checkpoint.file_bytes(name)
            progress(done, total)


def stated(bits: int) -> dict[str, Any]:
    """quantization_config of matrices that `packing.packed` wrote in groups of GROUP."""
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights_of(bits, "group", GROUP)}},
    }


def weights_of(bits: int, strategy: str, group: int | None) -> dict[str, Any]:
    """As compressed-tensors states them."""
    stated = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": False}
    return stated | ({} if group is None else {"group_size": group})


def _whole_rows(subject: Subject, tensor: str) -> bool:
    header, users = subject.checkpoint.headers[tensor], subject.users(tensor)
    if not users or not users <= {*subject.matrices} or len(header.shape) != 2 or not tensor.endswith(".weight"):
        return False
    steps = {step for name in users for step, *_ in subject.program.weights[name].prep}
    return header.shape[1] % GROUP == 0 and not steps & {*TURNED}
