"""A folder of safetensors (tiny_model.py) written as one GGUF file, the way converters do it."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
CONTROL = 3


def interleaved(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head: from halves side by side to pairs."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors_of(folder: Path, config: dict) -> dict[str, np.ndarray]:
    found = {}
    for name, array in load_file(folder / "model.safetensors").items():
        parts = name.removesuffix(".weight").split(".")
        if "layers" not in parts:
            short = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[parts[-1]]
            found[f"{short}.weight"] = array
            continue
        short = NAMES[".".join(parts[3:])]
        if short in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if short == "attn_q" else "num_key_value_heads"]
            array = interleaved(array, heads)
        found[f"blk.{parts[2]}.{short}.weight"] = array
    return found


def vocabulary(folder: Path, size: int) -> dict[str, object]:
    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = core.get_vocab(with_added_tokens=True)
    names = {number: text for text, number in ids.items()}
    special = {token.content for token in core.get_added_tokens_decoder().values()}
    tokens = [names.get(number, f"[PAD{number}]") for number in range(size)]
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [
            CONTROL if text in special else 1 if number in names else 5 for number, text in enumerate(tokens)
        ],
        "merges": [" ".join(pair) for pair in merges],
        "bos_token_id": ids[config["bos_token"]],
        "eos_token_id": ids[config["eos_token"]],
        "add_bos_token": True,
    }


def write_gguf_model(folder, path, *, tokenizer=None, keys=None, extra=None, template=None, tied=False):
    """tokenizer: changes to tokenizer.ggml.*, None removes. keys: more metadata. extra: more tensors."""
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    words = vocabulary(folder, config["vocab_size"]) | (tokenizer or {})
    more = {f"tokenizer.ggml.{name}": value for name, value in words.items()} | (keys or {})
    if template is not None:
        more["tokenizer.chat_template"] = template
    for name, value in more.items():
        if value is not None:
            kind = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}[type(value)]
            getattr(writer, f"add_{kind}")(name, value)
    tensors = tensors_of(folder, config) | (extra or {})
    if tied:
        del tensors["output.weight"]
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)
