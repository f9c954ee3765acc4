"""A GGUF file with so many times the layers, the further ones adding nothing: it says what the file says, at a price.

So the file drafts for it with every draft accepted, which is how much a draft model can bring at that price.

    PYTHONPATH=src python bench/deepen.py MODEL.gguf 5 DEEP.gguf
    octavo bench DEEP.gguf --speculate model:MODEL.gguf
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

ADDED = ("attn_output.weight", "ffn_down.weight")  # what a layer adds to the residual stream goes through these


def deepen(source: Path, times: int, target: Path) -> None:
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    counted = f"{architecture}.block_count"
    layers = reader.fields[counted].contents()
    writer = GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = layers * times if name == counted else field.contents()
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, field.types[0])
    for tensor in reader.tensors:
        copies = times if tensor.name.startswith("blk.") else 1
        for copy in range(copies):
            name, data = tensor.name, tensor.data
            if copy:
                _, layer, rest = name.split(".", 2)
                name, data = f"blk.{int(layer) + copy * layers}.{rest}", np.zeros_like(data) if rest in ADDED else data
            writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("times", type=int)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    deepen(given.source, given.times, given.target)
