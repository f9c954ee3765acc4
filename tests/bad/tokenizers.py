"""Tokenizers that cannot be used, as files and as the metadata of GGUF. All of them end with exit code 65.

FILES: name -> (file, its text, code). KEYS: name -> (changes to good metadata, code, word of the line).
"""

FILES = {
    "tokenizer.json empty": ("tokenizer.json", "", "bad_tokenizer"),
    "tokenizer.json a list": ("tokenizer.json", "[]", "bad_tokenizer"),
    "tokenizer.json cut": ("tokenizer.json", '{"version": "1.0", "model"', "bad_tokenizer"),
    "tokenizer.json depth": ("tokenizer.json", '{"a":' * 20_000, "bad_tokenizer"),
    "unknown model": ("tokenizer.json", '{"version": "1.0", "model": {"type": "Magic"}}', "bad_tokenizer"),
    "tokenizer_config.json cut": ("tokenizer_config.json", '{"a": ', "bad_json"),
    "tokenizer_config.json a list": ("tokenizer_config.json", "[1]", "bad_json"),
    "tokenizer_config.json depth": ("tokenizer_config.json", '{"a":' * 20_000, "bad_json"),
    "generation_config.json no JSON": ("generation_config.json", "nope", "bad_json"),
}

KEYS = {
    "no tokens": ({"tokens": None}, "bad_tokenizer", "tokens"),
    "token types of other length": ({"token_type": [1]}, "bad_tokenizer", "token_type"),
    "eos beyond the end": ({"eos_token_id": 10**6}, "bad_tokenizer", "eos_token_id"),
    "merge without a space": ({"merges": ["nospace"]}, "bad_tokenizer", "merges"),
    "merge of unknown tokens": ({"merges": ["q zzz"]}, "bad_tokenizer", "merges"),
    "unknown model": ({"model": "rwkv"}, "unknown_tokenizer", "rwkv"),
    "unknown cuts": ({"pre": "megatron"}, "unknown_pre_tokenizer", "megatron"),
    "no model": ({"model": None}, "unknown_tokenizer", "None"),
}
