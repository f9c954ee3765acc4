"""The vocabulary of a GGUF file as a folder has it: tokenizer.json, tokenizer_config.json, generation_config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import decoders, processors

from octavo.text.gguf_vocabulary import GgufVocabulary
from octavo.text.tokenizer import Tokenizer

SPACE = "▁"


def folder_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """File name -> contents. Raises BadFileError that names a key."""
    vocabulary, tokenizer = GgufVocabulary.read(metadata), Tokenizer.from_gguf(metadata)
    core = vocabulary.core()
    if vocabulary.rule:
        core.decoder = decoders.ByteLevel()
    else:
        steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        core.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if vocabulary.space_prefix else [])])
    bos, eos = vocabulary.bos_id, vocabulary.eos_id
    if vocabulary.add_bos and bos is not None:
        text = vocabulary.tokens[bos]
        core.post_processor = processors.TemplateProcessing(single=[text, "$A"], special_tokens=[(text, bos)])
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if bos is None else vocabulary.tokens[bos],
        "eos_token": None if eos is None else vocabulary.tokens[eos],
        "add_bos_token": vocabulary.add_bos,
        "add_eos_token": vocabulary.add_eos,
        "chat_template": tokenizer.chat_template,
    }
    stated = {name: value for name, value in config.items() if value is not None}
    return {
        "tokenizer.json": str(core.to_str()),
        "tokenizer_config.json": json.dumps(stated, indent=1),
        "generation_config.json": json.dumps({"eos_token_id": list(tokenizer.eos_ids)}),
    }
