"""Fixtures: the real model where this machine has it, and GGUF files written by the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_toys import TYPES

from octavo.errors import MissingFileError
from octavo.weights.fetch import resolve


@pytest.fixture(scope="session")
def smollm2() -> Path:
    try:
        return resolve("smollm2:135m")
    except MissingFileError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_by_package(smollm2) -> gguf.GGUFReader:
    """The real model as the gguf package reads it (seconds, therefore once)."""
    return gguf.GGUFReader(smollm2)


@pytest.fixture
def write_gguf(tmp_path):
    """write(tensors, metadata) -> path. tensors: name -> (type name, array: float32 or raw bytes [rows, row bytes])."""

    def write(tensors, metadata=None, *, file="toy.gguf"):
        writer = gguf.GGUFWriter(tmp_path / file, "llama")
        for key, value in (metadata or {}).items():
            if isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_uint32(key, value)
        for name, (kind, array) in tensors.items():
            raw = array if array.dtype == np.uint8 or kind == "F32" else gguf.quants.quantize(array, TYPES[kind])
            writer.add_tensor(name, raw, raw_dtype=TYPES[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / file

    return write
