"""Writes a checkpoint of a public model's shape with random weights, for measuring only: its answers mean nothing.

    python bench/shapes.py qwen3-0.6b|llama-3.2-1b|llama-3.1-8b|gemma-3-1b OUT.gguf [--type Q4_0|Q4_1|Q8_0|BF16|MXFP4]
    python bench/shapes.py qwen3-30b-a3b|gpt-oss-20b OUT.gguf --layers 4    (the first layers alone)
    python bench/shapes.py qwen3-0.6b OUT_FOLDER                  (config.json and safetensors, BF16)

Sizes are those of the published configurations. Weights are drawn block by block and written as they are drawn, so that
memory stays small; their scale keeps logits finite. The vocabulary is that of --tokenizer (a GGUF model), filled up
with unused tokens. Needs the development environment (the gguf package).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
from tokenizers import decoders

from octavo.text.gguf_vocabulary import GgufVocabulary
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.fetch import resolve

UNUSED = 5  # kind of a token that stands for nothing
PIECE = 16 << 20  # elements drawn at a time
LOGIT_SPREAD = 3.0  # standard deviation of logits
# Scaled rotary embeddings of Llama 3: low and high frequency factors, trained length.
LOW, HIGH, TRAINED = 1.0, 4.0, 8192


@dataclass(frozen=True)
class Shape:
    """rope_factor: of Llama 3's rotary scaling; 0 without. tied: the head is the embedding. experts: of each layer, of
    which a row takes `used`; inner is the width of one. window: of local layers."""

    family: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    context: int
    theta: float
    eps: float
    tied: bool
    rope_factor: float = 0.0
    experts: int = 0
    used: int = 0
    window: int = 0


KINDS = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32, "MXFP4": 38}  # -> general.file_type
SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6, 1e-6, True),
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5, 1e-5, True, 32.0),
    "llama-3.1-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5, 1e-5, False, 8.0),
    "gemma-3-1b": Shape("gemma3", 26, 1152, 6912, 4, 1, 256, 262144, 32768, 1e6, 1e-6, True, window=512),
    "qwen3-30b-a3b": Shape("qwen3moe", 48, 2048, 768, 32, 4, 128, 151936, 40960, 1e6, 1e-6, False, 0.0, 128, 8),
    "gpt-oss-20b": Shape("gpt-oss", 24, 2880, 2880, 64, 8, 64, 201088, 131072, 1.5e5, 1e-5, False, 0.0, 32, 4),
}

# A name in a GGUF file -> that in safetensors; {} is the layer.
NAMES = {
    "token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """(name in a GGUF file, [.., rows, columns] or [length], standard deviation; 0 for norms, which are ones)."""
    oss = shape.family == "gpt-oss"
    d, f, q, kv = shape.hidden, shape.inner, shape.heads * shape.head, shape.kv_heads * shape.head
    quiet = 1 / math.sqrt(2 * shape.layers)  # of what is added to the residual stream
    yield "token_embd.weight", (shape.vocabulary, d), LOGIT_SPREAD * d**-0.5
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        yield at + "attn_norm.weight", (d,), 0.0
        yield at + "attn_q.weight", (q, d), d**-0.5
        yield at + "attn_k.weight", (kv, d), d**-0.5
        yield at + "attn_v.weight", (kv, d), d**-0.5
        if oss:
            yield at + "attn_sinks.weight", (shape.heads,), 1.0
            for name, length in (("attn_q", q), ("attn_k", kv), ("attn_v", kv), ("attn_output", d)):
                yield f"{at}{name}.bias", (length,), 0.1
        if shape.family in ("qwen3", "qwen3moe", "gemma3"):
            yield at + "attn_q_norm.weight", (shape.head,), 0.0
            yield at + "attn_k_norm.weight", (shape.head,), 0.0
        yield at + "attn_output.weight", (d, q), quiet * q**-0.5
        if shape.family == "gemma3":
            yield at + "post_attention_norm.weight", (d,), 0.0
            yield at + "post_ffw_norm.weight", (d,), 0.0
        yield at + ("post_attention_norm.weight" if oss else "ffn_norm.weight"), (d,), 0.0
        stack: tuple[int, ...] = (shape.experts,) if shape.experts else ()
        end = "_exps" if shape.experts else ""
        yield f"{at}ffn_gate{end}.weight", (*stack, f, d), d**-0.5
        yield f"{at}ffn_up{end}.weight", (*stack, f, d), d**-0.5
        yield f"{at}ffn_down{end}.weight", (*stack, d, f), quiet * f**-0.5
        if shape.experts:
            yield at + "ffn_gate_inp.weight", (shape.experts, d), d**-0.5
        if oss:
            yield at + "ffn_gate_inp.bias", (shape.experts,), 0.1
            for name, length in (("gate", f), ("up", f), ("down", d)):
                yield f"{at}ffn_{name}_exps.bias", (shape.experts, length), 0.1
    yield "output_norm.weight", (d,), 0.0
    if not shape.tied:
        yield "output.weight", (shape.vocabulary, d), LOGIT_SPREAD * d**-0.5


def plain(name: str) -> bool:
    """Whether files hold it in float32: vectors, routers, biases."""
    return name.endswith((".bias", "norm.weight", "ffn_gate_inp.weight", "attn_sinks.weight"))


def bf16(rng: np.random.Generator, count: int, deviation: float) -> np.ndarray:
    """Either sign, any mantissa, four exponents: of about this standard deviation (within a factor of 1.5)."""
    bits = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    exponent = 127 + round(math.log2(deviation / 0.88))
    return (bits & 0x807F) | ((exponent - (bits >> 7 & 3)) << 7).astype(np.uint16)


def blocks(rng: np.random.Generator, count: int, kind: str, deviation: float) -> np.ndarray:
    """Blocks of 32 with any quants and a scale that gives about this standard deviation."""
    if kind == "MXFP4":
        out = np.empty(count, np.dtype([("e", "u1"), ("q", "u1", (16,))]))
        out["e"] = 127 + round(math.log2(deviation / 2.9)) + rng.integers(0, 2, count, dtype=np.uint8)
        out["q"] = rng.integers(0, 256, (count, 16), dtype=np.uint8)
        return out
    width = 32 if kind == "Q8_0" else 16
    scale = deviation / (math.sqrt(256**2 / 12) if kind == "Q8_0" else math.sqrt(16**2 / 12))
    fields: list[Any] = [("d", "<f2"), ("q", "u1", (width,))]
    if kind == "Q4_1":
        fields.insert(1, ("m", "<f2"))
    out = np.empty(count, np.dtype(fields))
    out["d"] = (scale * rng.uniform(0.8, 1.2, count)).astype(np.float16)
    if kind == "Q4_1":
        out["m"] = (-7.5 * out["d"].astype(np.float32)).astype(np.float16)
    out["q"] = rng.integers(0, 256, (count, width), dtype=np.uint8)
    return out


def draw(rng: np.random.Generator, size: tuple[int, ...], deviation: float, kind: str) -> Iterator[np.ndarray]:
    """The tensor's bytes, piece by piece. kind F32: of any size, and ones where nothing deviates."""
    count = math.prod(size)
    if kind == "F32":
        yield (np.float32(deviation == 0) + deviation * rng.standard_normal(count)).astype(np.float32)
        return
    for begin in range(0, count, PIECE):
        left = min(PIECE, count - begin)
        yield bf16(rng, left, deviation) if kind == "BF16" else blocks(rng, left // 32, kind, deviation)


def rope_factors(shape: Shape) -> np.ndarray:
    """Divisors of the rotary frequencies, as converters write them for Llama 3's scaling."""
    found = []
    for i in range(0, shape.head, 2):
        wavelength = 2 * math.pi * shape.theta ** (i / shape.head)
        blend = (TRAINED / wavelength - LOW) / (HIGH - LOW)
        blend = min(max(blend, 0.0), 1.0)
        found.append(1 / ((1 - blend) / shape.rope_factor + blend))
    return np.array(found, np.float32)


def words(metadata: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The tokenizer.* keys of a GGUF file for `size` tokens: cut, or filled up with unused ones."""
    kept = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    tokens = [*kept["tokenizer.ggml.tokens"][:size]]
    more = size - len(tokens)
    kinds = [*kept["tokenizer.ggml.token_type"][:size], *[UNUSED] * more]
    known = set(tokens)
    merges = [
        line for line in kept["tokenizer.ggml.merges"] if {*line.split(" ", 1), line.replace(" ", "", 1)} <= known
    ]
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(more)]
    changed = {"tokens": tokens, "token_type": [int(kind) for kind in kinds], "merges": merges}
    return kept | {f"tokenizer.ggml.{name}": value for name, value in changed.items()}


def write_gguf(shape: Shape, kind: str, path: Path, metadata: Mapping[str, Any]) -> None:
    """metadata: of a GGUF file with a byte-level BPE tokenizer."""
    writer = gguf.GGUFWriter(path, shape.family)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(shape.theta)
    writer.add_layer_norm_rms_eps(shape.eps)
    if shape.window:
        writer.add_sliding_window(shape.window)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(KINDS[kind])
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.used)
        writer.add_expert_feed_forward_length(shape.inner)
    if shape.family == "gpt-oss":
        writer.add_sliding_window(128)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
    for key, value in words(metadata, shape.vocabulary).items():
        add = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}[type(value)]
        getattr(writer, f"add_{add}")(key, value)
    wanted = gguf.GGMLQuantizationType[kind]
    if shape.rope_factor:
        factors = rope_factors(shape)
        writer.add_tensor_info("rope_freqs.weight", factors.shape, np.dtype(np.float32), factors.nbytes)
    for name, size, _ in tensors(shape):
        if plain(name):
            writer.add_tensor_info(name, size, np.dtype(np.float32), 4 * math.prod(size))
        else:
            stored = gguf.quants.quant_shape_to_byte_shape(size, wanted)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), math.prod(stored), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    [file] = writer.fout
    if shape.rope_factor:
        _put(writer, file, [rope_factors(shape)])
    rng = np.random.default_rng(0)
    for name, size, deviation in tensors(shape):
        _put(writer, file, draw(rng, size, deviation, "F32" if plain(name) else kind))
    writer.write_padding(file, file.tell())
    writer.close()


def _put(writer: gguf.GGUFWriter, file: Any, pieces: Any) -> None:
    writer.write_padding(file, file.tell())
    for piece in pieces:
        file.write(piece.tobytes())


def write_safetensors(shape: Shape, folder: Path, metadata: Mapping[str, Any]) -> None:
    """config.json, the tokenizer's files and one model.safetensors in BF16."""
    folder.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {}
    at = 0
    for name, size, _ in tensors(shape):
        header[_long_name(name)] = {
            "dtype": "BF16",
            "shape": list(size),
            "data_offsets": [at, at + 2 * math.prod(size)],
        }
        at += 2 * math.prod(size)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, size, deviation in tensors(shape):
            _put_bf16(file, rng, size, deviation)
    (folder / "config.json").write_text(json.dumps(_config(shape), indent=1))
    write_tokenizer(folder, metadata, shape.vocabulary)


def write_tokenizer(folder: Path, metadata: Mapping[str, Any], size: int) -> None:
    """Its two files, of `size` tokens. metadata: as in write_gguf."""
    vocabulary = GgufVocabulary.read(words(metadata, size))
    core = vocabulary.core()
    core.decoder = decoders.ByteLevel()
    core.save(str(folder / "tokenizer.json"))
    end = vocabulary.tokens[vocabulary.eos_id or 0]
    template = metadata.get("tokenizer.chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end, "chat_template": template}))


def _put_bf16(file: BinaryIO, rng: np.random.Generator, size: tuple[int, ...], deviation: float) -> None:
    for piece in draw(rng, size, deviation, "F32" if deviation == 0 else "BF16"):
        file.write((piece.view(np.uint32) >> 16).astype(np.uint16) if deviation == 0 else piece)


def _long_name(name: str) -> str:
    parts = name.split(".")
    layer = f"model.layers.{parts[1]}." if parts[0] == "blk" else ""
    return f"{layer}{NAMES[parts[-2]]}.weight"


def _config(shape: Shape) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM" if shape.family == "qwen3" else "LlamaForCausalLM"],
        "model_type": shape.family,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "bfloat16",
    }
    if shape.rope_factor:
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": shape.rope_factor,
            "low_freq_factor": LOW,
            "high_freq_factor": HIGH,
            "original_max_position_embeddings": TRAINED,
        }
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description="random weights in a public model's shape")
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("out", type=Path, help="a .gguf file, or a folder for safetensors")
    parser.add_argument("--type", default=None, choices=tuple(KINDS), help="of the matrices")
    parser.add_argument("--layers", type=int, default=0, help="so many of them")
    parser.add_argument("--tokenizer", default="smollm2:135m", help="GGUF model whose vocabulary is taken")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    shape = replace(shape, layers=args.layers or shape.layers)
    source = open_checkpoint(resolve(args.tokenizer))
    if args.out.suffix == ".gguf":
        write_gguf(shape, args.type or "Q4_0", args.out, source.tokenizer)
    elif args.type in (None, "BF16") and not shape.experts and not shape.window:
        write_safetensors(shape, args.out, source.tokenizer)
    else:
        parser.error("safetensors are written as BF16, and without experts")
    source.close()
    print(json.dumps(asdict(shape)))


if __name__ == "__main__":
    main()
