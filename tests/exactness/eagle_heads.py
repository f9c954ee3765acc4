"""EAGLE heads that are right by construction, and a model that they fit.

The model's layers whisper: what it says next hangs mostly on its last token, as a head over that token's embedding
would have it. The heads say just that, in the ways of their generations; what they miss are the layers.

    EAGLE-1   fc takes the embedding alone; the layer adds nothing
    EAGLE-3   g = 0 of the target; attention finds the row itself, whose value is norm(e) - norm(g): x = norm(e)
"""

import json

import numpy as np
from safetensors.numpy import save_file
from tiny_model import random_tensors, write_tokenizer

from exactness.models import ODD

CONFIG = {**ODD, "vocab_size": 275, "tie_word_embeddings": False, "num_hidden_layers": 4}
WIDTH, VOCAB, HEADS = CONFIG["hidden_size"], CONFIG["vocab_size"], 6
SHARP = 3.0  # of queries and keys: a row's score with itself stands above all others
LOUD = 0.05  # of the layers


def write_model(folder):
    tensors = random_tensors(CONFIG, 5)
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = (tensors[name] * LOUD).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_tokenizer(folder)
    return str(folder), tensors


def stated(**more):
    """config.json of a head."""
    size = {"head_dim": WIDTH // HEADS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    return {**CONFIG, **size, "num_hidden_layers": 1, "intermediate_size": 24, "architectures": [], **more}


def layer(at, *, eaten, **given):
    """Tensors of a layer that adds nothing, but for those given."""
    zero = np.zeros
    tensors = {
        f"self_attn.{name}_proj.weight": zero((WIDTH, eaten if name != "o" else WIDTH), np.float32) for name in "qkvo"
    }
    tensors |= {f"mlp.{name}_proj.weight": zero((24, WIDTH), np.float32) for name in ("gate", "up")}
    tensors |= {"mlp.down_proj.weight": zero((WIDTH, 24), np.float32)}
    tensors |= {"post_attention_layernorm.weight": np.ones(WIDTH, np.float32)}
    return {f"{at}.{name}": np.asarray(array, np.float32) for name, array in {**tensors, **given}.items()}


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def eagle1(target):
    """(config, tensors)"""
    embedding = target["model.embed_tokens.weight"]
    scale = np.diag(target["model.norm.weight"] / np.sqrt(np.mean(embedding**2)))
    fc = np.concatenate((scale, np.zeros((WIDTH, WIDTH))), axis=1)
    tensors = {"fc.weight": fc.astype(np.float32), **layer("layers.0", eaten=WIDTH), "embed_tokens.weight": embedding}
    return stated(architectures=["LlamaForCausalLMEagle"]), tensors


def eagle3(target, *, kept=None, at="midlayer"):
    """kept: the target's tokens that the head knows, ascending; None for all."""
    one, none = np.eye(WIDTH), np.zeros((WIDTH, WIDTH))
    look, value = np.concatenate((SHARP * one, none), axis=1), np.concatenate((one, -one), axis=1)
    ones = np.ones(WIDTH, np.float32)
    ids = np.arange(VOCAB) if kept is None else np.asarray(kept)
    tensors = layer(
        at,
        eaten=2 * WIDTH,
        **{f"self_attn.{name}_proj.weight": look for name in "qk"},
        **{"self_attn.v_proj.weight": value, "self_attn.o_proj.weight": one},
        **{"hidden_norm.weight": ones, "input_layernorm.weight": ones},
    )
    tensors |= {
        "fc.weight": np.zeros((WIDTH, 3 * WIDTH), np.float32),
        "norm.weight": target["model.norm.weight"],
        "lm_head.weight": target["lm_head.weight"][ids],
    }
    if kept is not None:
        tensors["d2t"] = ids - np.arange(len(ids))
        tensors["t2d"] = np.isin(np.arange(VOCAB), ids)
    return stated(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=len(ids)), tensors
