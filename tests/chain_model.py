"""A real checkpoint whose greedy answer is known: each token has one successor, whatever stands before it.

Attention and MLP add nothing, so the head sees the embedding of the last token alone; the head's row of each successor
is that embedding. Tests can so ask for exact texts of the whole engine.

    "C" -> "DEFG...Z", end        "d" -> "ďábel", end        "!" -> "🌶", end        "=" -> " hi", end
    "?" -> the second end-of-text token at once

In a chat the prompt ends with "assistant: ", whose space has the successor "h": the answer is "hi".
"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tiny_model import CONFIG, TEMPLATE, VOCAB, write_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

END, SECOND_END = 257, 258
TEXTS = ["ABCDEFGHIJKLMNOPQRSTUVWXYZ", "dďábel", "!🌶", "= hi"]
WIDTH, GAIN = 64, 20.0  # the successor's logit is GAIN, the others' about GAIN / 8 and less


def byte_ids(text: str | bytes) -> list[int]:
    """Ids of the single bytes, no merges."""
    spelling = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    characters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    data = text.encode() if isinstance(text, str) else text
    return [spelling.index(characters[byte]) for byte in data]


def write_weights(folder: Path, successor: dict[int, int], vocab: int) -> None:
    rng = np.random.default_rng(5)
    embedding = rng.standard_normal((vocab, WIDTH)).astype(np.float32)
    head = np.zeros((vocab, WIDTH), np.float32)
    for token, following in successor.items():
        head[following] += embedding[token] * np.float32(GAIN / WIDTH)
    ones, at = np.ones(WIDTH, np.float32), "model.layers.0."
    square, narrow = np.zeros((WIDTH, WIDTH), np.float32), np.zeros((16, WIDTH), np.float32)
    tensors = {
        "model.embed_tokens.weight": embedding, "model.norm.weight": ones, "lm_head.weight": head,
        at + "input_layernorm.weight": ones, at + "post_attention_layernorm.weight": ones,
        at + "self_attn.q_proj.weight": square, at + "self_attn.k_proj.weight": narrow,
        at + "self_attn.v_proj.weight": narrow, at + "self_attn.o_proj.weight": square,
        at + "mlp.gate_proj.weight": square, at + "mlp.up_proj.weight": square, at + "mlp.down_proj.weight": square,
    }  # fmt: skip
    save_file(tensors, folder / "model.safetensors")


def write_config(folder: Path, vocab: int, **fields: object) -> None:
    sizes = {"vocab_size": vocab, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1}
    config = CONFIG | sizes | {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16} | fields
    (folder / "config.json").write_text(json.dumps(config))


def write_chain(folder: Path, longest: int = 256) -> str:
    successor = {byte_ids("?")[0]: SECOND_END}
    for text in TEXTS:
        ids = [*byte_ids(text), END]
        for token, following in pairwise(ids):
            assert token not in successor, f"{text}: two successors"
            successor[token] = following
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, VOCAB, max_position_embeddings=longest)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, SECOND_END]}))
    write_tokenizer(folder)
    write_weights(folder, successor, VOCAB)
    return str(folder)


PIECES = ["<unk>", "<s>", "</s>", "▁", "▁leading", "▁x", "a", "b", "c", "l", "e", "x"]


def write_pieces(folder: Path) -> str:
    """A vocabulary of twelve SentencePiece tokens: "<s>" -> "▁" "▁leading" "▁x", end."""
    folder.mkdir(parents=True, exist_ok=True)
    core = Tokenizer(models.BPE({text: i for i, text in enumerate(PIECES)}, [], unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    core.add_special_tokens([AddedToken(text, special=True) for text in PIECES[:3]])
    core.save(str(folder / "tokenizer.json"))
    words = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    write_config(folder, len(PIECES), bos_token_id=1, eos_token_id=2)
    write_weights(folder, {1: 3, 3: 4, 4: 5, 5: 2}, len(PIECES))
    return str(folder)
