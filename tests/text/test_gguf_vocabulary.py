"""Tokenizers out of GGUF metadata equal pipelines built by the rule that the metadata names; bad metadata is named."""

import itertools

import pytest
from hypothesis import given, settings
from text_toys import STRINGS, byte_level_gguf, sentencepiece_gguf, text_strategy
from tokenizers import Tokenizer as Core
from tokenizers import pre_tokenizers

from octavo.errors import BadFileError
from octavo.text.bpe_rules import RULES
from octavo.text.tokenizer import Tokenizer


def test_smollm_is_digits_then_byte_level(byte_core):
    core = Core.from_str(byte_core.to_str())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.encode_special_tokens = True
    smollm = Tokenizer.from_gguf(byte_level_gguf(byte_core, "smollm"))
    plain = Tokenizer.from_gguf(byte_level_gguf(byte_core, "gpt-2"))
    assert [smollm.encode(text) for text in STRINGS] == [core.encode(text).ids for text in STRINGS]
    assert smollm.encode("1999") != plain.encode("1999")


@settings(max_examples=100, deadline=None)
@given(text=text_strategy)
def test_gpt2_rule_equals_the_file_it_came_from(byte_core, byte_tokenizer, text):
    gguf = Tokenizer.from_gguf(byte_level_gguf(byte_core))
    assert gguf.encode(text) == byte_tokenizer.encode(text)


CUTS = {
    "llama3": ("1234 it'LL", ["123", "4", "Ġit", "'LL"]),
    "qwen2": ("1234 x!\n\n", ["1", "2", "3", "4", "Ġx", "!ĊĊ"]),
    "gpt-4o": ("fooBar WORLD's 12345 x=/a", ["foo", "Bar", "ĠWORLD's", "Ġ", "123", "45", "Ġx", "=/", "a"]),
    "deepseek-llm": ("ab 123\néa東京!", ["ab", "Ġ", "123", "Ċ", "Ã©", "a", "æĿ±äº¬", "!"]),
    "deepseek-v3": ("1234東京(ab ab", ["123", "4", "æĿ±äº¬", "(ab", "Ġab"]),
    "default": ("a 1234+b", ["a", "Ġ", "123", "4", "+", "b"]),
}


@pytest.mark.parametrize("name", CUTS)
def test_cuts_of_the_named_rules(name):
    text, expected = CUTS[name]
    assert [piece for piece, _ in RULES[name].pre_tokenizer().pre_tokenize_str(text)] == expected


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25, deadline=None)
@given(text=text_strategy)
def test_every_rule_keeps_every_byte(byte_core, name, text):
    tokenizer = Tokenizer.from_gguf(byte_level_gguf(byte_core, name))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def merge_by_score(metadata: dict, text: str) -> list[int]:
    """SentencePiece's BPE, spelled out: join the best-scored neighbours, leftmost first, until nothing joins."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    kinds = metadata["tokenizer.ggml.token_type"]
    ids = {token: place for place, token in enumerate(tokens) if kinds[place] == 1}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        joins = [
            (-scores[ids[left + right]], place)
            for place, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in ids
        ]
        if not joins:
            break
        place = min(joins)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    out: list[int] = []
    for part in parts:
        out += [ids[part]] if part in ids else [tokens.index(f"<0x{byte:02X}>") for byte in part.encode()]
    return out


@settings(max_examples=200, deadline=None)
@given(text=text_strategy.filter(bool))
def test_sentencepiece_merges_by_score(piece_core, text):
    metadata = sentencepiece_gguf(piece_core)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode(text) == merge_by_score(metadata, text)


def test_sentencepiece_adds_bos_by_default(piece_core):
    metadata = sentencepiece_gguf(piece_core)
    assert Tokenizer.from_gguf(metadata).encode("the dog", add_special=True)[0] == 1
    off = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.add_bos_token": False})
    assert off.encode("the dog", add_special=True)[0] != 1


def test_byte_tokens_decode_to_their_bytes(piece_core):
    tokenizer = Tokenizer.from_gguf(sentencepiece_gguf(piece_core))
    ids = tokenizer.encode("\N{HOT PEPPER}")
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == b" \xf0\x9f\x8c\xb6"


def test_end_of_turn_tokens_end_an_answer(byte_core):
    assert Tokenizer.from_gguf(byte_level_gguf(byte_core)).eos_ids == (2, 0)
    metadata = byte_level_gguf(byte_core) | {"tokenizer.ggml.eot_token_id": 5}
    assert Tokenizer.from_gguf(metadata).eos_ids == (2, 5, 0)


BAD = [
    ({"tokens": None}, BadFileError, "tokens"),
    ({"tokens": []}, BadFileError, "tokens"),
    ({"tokens": [1, 2]}, BadFileError, "tokens"),
    ({"merges": ["nospace"]}, BadFileError, "merges"),
    ({"merges": ["q zzz"]}, BadFileError, "merges"),
    ({"token_type": [1]}, BadFileError, "token_type"),
    ({"eos_token_id": 10**6}, BadFileError, "eos_token_id"),
    ({"bos_token_id": -1}, BadFileError, "bos_token_id"),
    ({"add_bos_token": "yes"}, BadFileError, "add_bos_token"),
    ({"pre": "megatron"}, BadFileError, "megatron"),
    ({"model": "rwkv"}, BadFileError, "rwkv"),
    ({"model": "llama"}, BadFileError, "scores"),
]


@pytest.mark.parametrize(("change", "error", "word"), BAD)
def test_bad_metadata_is_named(byte_core, change, error, word):
    metadata = byte_level_gguf(byte_core) | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(error, match=word):
        Tokenizer.from_gguf(metadata)
