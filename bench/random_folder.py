"""Writes config.json and safetensors with random BF16 weights for a model's program, for measuring only.

    python bench/random_folder.py OUT_FOLDER [--config config.json] [--layers N]

Without --config: layers of Qwen3-Next-80B's size, four of them (three recurrent, one of attention), with 32 experts
instead of 512 and a vocabulary of 32,768: 1.3 GB. bench/shapes.py writes other shapes and GGUF. A tensor has the shape
of the weights made of it with their preparation undone; where several are taken out of one tensor, they are rows of its
heads. The tokenizer is that of --tokenizer, cut or filled up to the vocabulary.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from shapes import draw, write_tokenizer

from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.ir import Weight
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.fetch import resolve

QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "vocab_size": 32768,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 32,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "torch_dtype": "bfloat16",
}


def tensors(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor of the file."""
    shapes: dict[str, tuple[int, ...]] = {}
    for weight in program_for(ModelConfig.from_mapping(config)).weights.values():
        source = weight.sources["hf"]
        rows, *rest = stored(weight)
        shared = any(name == "head_rows" for name, *_ in weight.prep) and source in shapes
        shapes[source] = (rows + (shapes[source][0] if shared else 0), *rest)
    for name, shape in shapes.items():
        if "{e}" not in name:
            yield name, shape
            continue
        for expert in range(shape[0]):
            yield name.replace("{e}", str(expert)), shape[1:]


def stored(weight: Weight) -> tuple[int, ...]:
    """The shape of what the weight takes out of its tensor, as it stands there."""
    shape = weight.shape
    for name, *arguments in reversed(weight.prep):
        if name == "transpose_heads":
            heads = int(arguments[0])
            shape = (heads * shape[1], shape[0] // heads)
        elif name not in ("head_rows", "unpermute_rope"):
            raise SystemExit(f"{weight.name} is prepared in a way that is not undone here: {weight.prep}")
    return shape


def deviation(name: str, shape: tuple[int, ...]) -> float:
    """0: ones. A_log: of rates below 1, so that a state lasts."""
    if len(shape) == 1:
        return 1.0 if name.endswith(("A_log", "bias")) else 0.0
    return 0.5 if "conv" in name else shape[-1] ** -0.5


def write(config: Mapping[str, Any], folder: Path) -> int:
    """The bytes of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = list(tensors(config))
    header: dict[str, Any] = {}
    at = 0
    for name, shape in listed:
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in listed:
            spread = deviation(name, shape)
            for piece in draw(rng, shape, spread, "BF16" if spread else "F32"):
                file.write(piece if spread else (piece.view(np.uint32) >> 16).astype(np.uint16))
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return at


def main() -> None:
    parser = argparse.ArgumentParser(description="random weights for a configuration")
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", type=Path, help="a config.json")
    parser.add_argument("--layers", type=int, default=0, help="so many of them")
    parser.add_argument("--tokenizer", default="smollm2:135m", help="GGUF model whose vocabulary is taken")
    args = parser.parse_args()
    config = json.loads(args.config.read_text()) if args.config else dict(QWEN3_NEXT)
    if args.layers:
        config["num_hidden_layers"] = args.layers
    print(f"{write(config, args.out) / 2**20:.0f} MiB")
    source = open_checkpoint(resolve(args.tokenizer))
    write_tokenizer(args.out, source.tokenizer, config["vocab_size"])
    source.close()


if __name__ == "__main__":
    main()
