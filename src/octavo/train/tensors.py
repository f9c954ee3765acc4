"""Tensors of torch in a safetensors file: written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from octavo.errors import ResourceError
from octavo.quantize.outputs import safetensors_file
from octavo.weights.catalogue import MappedFile
from octavo.weights.safetensors import parse_safetensors

DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}
BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises ResourceError where the disk refuses."""
    specs = {name: (DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    beside = path.with_name(f".{path.name}.part")
    try:
        with safetensors_file(beside, specs) as file:
            for name, tensor in tensors.items():
                flat = tensor.detach().contiguous().reshape(-1)
                file.put(name, flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8))
        os.replace(beside, path)
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written ({error.strerror})", code="out_unwritable") from None


class StoredTensors:
    """An open file; rows are copied out of it when they are asked for. Raises BadFileError."""

    def __init__(self, path: Path) -> None:
        self._data = MappedFile(path).bytes
        self.headers, self._places, _ = parse_safetensors(self._data, str(path))

    def rows(self, name: str, begin: int = 0, end: int | None = None) -> torch.Tensor:
        """Rows [begin, end) of a tensor."""
        header, at = self.headers[name], self._places[name]
        count = header.shape[0]
        size = header.nbytes // max(count, 1)
        last = count if end is None else end
        flat = torch.from_numpy(np.array(self._data[at + begin * size : at + last * size], copy=True))
        return flat.view(BY_NAME[header.dtype]).reshape(last - begin, *header.shape[1:])


def read(path: Path) -> dict[str, torch.Tensor]:
    """All of a file."""
    stored = StoredTensors(path)
    return {name: stored.rows(name) for name in stored.headers}
