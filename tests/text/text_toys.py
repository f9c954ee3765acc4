"""Toy tokenizers, trained here: byte-level BPE and SentencePiece-style BPE with byte fall-back, as files and as GGUF.

And strings that separate tokenizers from one another.
"""

import json

from hypothesis import strategies as st
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox does not.",
    "Alphabet: ABCDEFGHIJKLMNOP. Numbers: 0 1 2 3 42 1999. It's what they'll say, isn't it?",
    "ďábelské ódy, naïve café, Größe, 東京 と 大阪, 🌶 chili 🌶 and 😀 faces",
    "ha ha ha, said the leading x of the leading y",
    "def main():\n    return [1, 2, 3]\n\n",
] * 4


def byte_level_core() -> Core:
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    return core


def sentencepiece_core() -> Core:
    core = Core(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=520,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        limit_alphabet=60,
        max_token_length=6,
        show_progress=False,
    )
    core.train_from_iterator([word for line in CORPUS for word in line.split()], trainer)
    state = json.loads(core.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    core = Core.from_str(json.dumps(state))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return core


def byte_level_gguf(core: Core, pre: str = "gpt-2") -> dict:
    state = json.loads(core.to_str())
    ids = core.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    special = {token["id"] for token in state["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token_id in special else 1 for token_id in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in state["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def sentencepiece_gguf(core: Core) -> dict:
    ids = core.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [0.0 if kind != 1 else -float(place) for place, kind in enumerate(kinds)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


STRINGS = [
    "Hello, world!",
    "a  12 34",
    "  12",
    "٣٤ ½",
    " leading x",
    "tabs\tand\n\n  newlines \r\n",
    "It's we'll I'VE don't",
    "ďábelské ódy",
    "🌶😀👨‍👩‍👧",
    "東京と大阪。",
    "1234567890",
    "<|im_start|>user<s>",
    "x = [1, 2]; y != -3.5e10 // ok",
]

text_strategy = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="the dogfx ABC123 \n'.,ď🌶東", max_size=60),
    st.sampled_from(STRINGS),
)
