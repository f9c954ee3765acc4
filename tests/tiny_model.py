"""Writes a tiny random Llama with a byte-level tokenizer: config, safetensors, tokenizer, chat template."""

import json

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BYTES = 256
SPECIALS = ["<s>", "</s>", "<|end|>"]  # ids 256, 257, 258
MERGES = [("t", "h"), ("h", "e"), ("th", "e"), ("Ġ", "the"), ("a", "n"), ("i", "n"), ("e", "r"), ("Ġ", "a")]
VOCAB = 272  # the tokenizer knows fewer: the last rows are padding
LONGEST = 8192

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|end|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_tokenizer(folder):
    spelling = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate(spelling)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    vocabulary |= {text: BYTES + i for i, text in enumerate(SPECIALS)}
    for left, right in MERGES:
        vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def random_tensors(config, seed, embedding=1.0):
    """Weights of a Llama of these sizes, by their names in a checkpoint. embedding: its standard deviation."""
    rng = np.random.default_rng(seed)
    width, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]

    def matrix(rows, columns, scale=1.5):
        return (rng.standard_normal((rows, columns)) * scale / columns**0.5).astype(np.float32)

    def norm():
        return (1 + 0.2 * rng.standard_normal(width)).astype(np.float32)

    table = rng.standard_normal((config["vocab_size"], width)) * embedding
    tensors = {
        "model.embed_tokens.weight": table.astype(np.float32),
        "model.norm.weight": norm(),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], width, 2.0)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": norm(),
            at + "post_attention_layernorm.weight": norm(),
            at + "self_attn.q_proj.weight": matrix(heads * size, width),
            at + "self_attn.k_proj.weight": matrix(kv * size, width),
            at + "self_attn.v_proj.weight": matrix(kv * size, width),
            at + "self_attn.o_proj.weight": matrix(width, heads * size),
            at + "mlp.gate_proj.weight": matrix(inner, width),
            at + "mlp.up_proj.weight": matrix(inner, width),
            at + "mlp.down_proj.weight": matrix(width, inner),
        }
    return tensors


def write_model(folder, seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_tokenizer(folder)
    save_file(random_tensors(CONFIG, seed), folder / "model.safetensors")
    return str(folder)
