"""Text to ids and back: one Tokenizer over a `tokenizer.json` or over the metadata of a GGUF file.

Encoding is the `tokenizers` library's; decoding joins the bytes of pieces (pieces.py), so that streams and whole texts
are one rule. The text of a user never becomes a special token unless `parse_special` is asked for.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer as Core

from octavo.errors import BadFileError, MissingFileError, RequestError
from octavo.text.gguf_vocabulary import GgufVocabulary
from octavo.text.pieces import PieceTable

# Batches are of one text: the library's own threads would only stand beside the kernels', and warn in forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Control tokens that end a turn wherever they are in a vocabulary, whatever else the file says.
END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
)


@dataclass(frozen=True, slots=True)
class Specials:
    """Which ids begin and end a sequence, and whether `add_special` puts them there by itself."""

    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool = False
    add_eos: bool = False


class Tokenizer:
    """Implements types.Vocabulary. Thread-safe."""

    def __init__(
        self, core: Core, table: PieceTable, specials: Specials, chat_template: str | None = None, where: str = ""
    ) -> None:
        """where: the model's file or folder, for errors that are found late (the chat template's)."""
        self._core = core
        self._lock = threading.Lock()
        self._specials = specials
        self.pieces = table
        self.chat_template = chat_template
        self.where = where

    @classmethod
    def from_files(
        cls, tokenizer_json: Path, config: Mapping[str, Any] | None = None, generation: Mapping[str, Any] | None = None
    ) -> Tokenizer:
        """From `tokenizer.json`, the contents of `tokenizer_config.json` and of `generation_config.json`."""
        core = _load(tokenizer_json)
        config, generation = config or {}, generation or {}
        added = core.get_added_tokens_decoder()
        vocabulary = core.get_vocab(with_added_tokens=True)
        texts: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
        for text, token_id in vocabulary.items():
            texts[token_id] = text
        hidden = {token_id for token_id, token in added.items() if token.special}
        table = PieceTable(texts, hidden=hidden, verbatim=added.keys(), **_decoder_rule(core, tokenizer_json))
        specials = Specials(
            bos_id=vocabulary.get(_token_text(config.get("bos_token"))),
            eos_ids=_eos_ids(config, generation, vocabulary, hidden),
            add_bos=config.get("add_bos_token") is True,
            add_eos=config.get("add_eos_token") is True,
        )
        return cls(core, table, specials, _template(config, tokenizer_json.parent), str(tokenizer_json.parent))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], where: str = "") -> Tokenizer:
        """From the `tokenizer.*` keys of a GGUF file. Raises BadFileError that names the key."""
        source = GgufVocabulary.read(metadata)
        ends = [source.eos_id, source.eot_id, source.eom_id, *_ends(source.ids, source.hidden)]
        specials = Specials(
            bos_id=source.bos_id,
            eos_ids=tuple(dict.fromkeys(token_id for token_id in ends if token_id is not None)),
            add_bos=source.add_bos,
            add_eos=source.add_eos,
        )
        template = metadata.get("tokenizer.chat_template")
        return cls(source.core(), source.pieces(), specials, template if isinstance(template, str) else None, where)

    @property
    def size(self) -> int:
        return self.pieces.size

    @property
    def bos_id(self) -> int | None:
        return self._specials.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer, the model's own end of sequence first."""
        return self._specials.eos_ids

    @property
    def special_ids(self) -> frozenset[int]:
        return self.pieces.hidden

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Spellings of the special tokens, as `parse_special` finds them."""
        return tuple(text for token_id in sorted(self.pieces.hidden) if (text := self.pieces.text(token_id)))

    @property
    def bos_token(self) -> str:
        return "" if self.bos_id is None else self.pieces.text(self.bos_id) or ""

    @property
    def eos_token(self) -> str:
        return self.pieces.text(self.eos_ids[0]) or "" if self.eos_ids else ""

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces.piece(token_id)

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Ids of the text. With add_special never two BOS, also when the text spells one and parse_special finds it.

        As a batch of one, which lets other threads run: megabytes take seconds.
        """
        with self._lock:
            self._core.encode_special_tokens = not parse_special
            try:
                ids: list[int] = self._core.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
            except (UnicodeEncodeError, TypeError):
                raise RequestError("the text is not valid Unicode (a lone surrogate)", param="prompt") from None
        return self._framed(ids) if add_special else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return self.pieces.join(ids, skip_special=skip_special).decode("utf-8", "replace")

    def _framed(self, ids: list[int]) -> list[int]:
        bos, eos = self.bos_id, self.eos_ids[0] if self.eos_ids else None
        if bos is not None and self._specials.add_bos and ids[:1] != [bos]:
            ids = [bos, *ids]
        if bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        if eos is not None and self._specials.add_eos and ids[-1:] != [eos]:
            ids = [*ids, eos]
        return ids


def _load(path: Path) -> Core:
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file", code="tokenizer_missing")
    try:
        core = Core.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library's panics are no Exception
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadFileError(f"{path}: {first}", code="bad_tokenizer") from None
    core.no_truncation()
    core.no_padding()
    return core


def _decoder_rule(core: Core, path: Path) -> dict[str, Any]:
    """PieceTable arguments for the file's decoder. Raises BadFileError that names a part of it."""
    if core.decoder is None:
        raise BadFileError(f"{path}: a tokenizer without a decoder", code="unknown_decoder")
    state = json.loads(core.decoder.__getstate__())
    parts = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [part["type"] for part in parts]
    if kinds == ["ByteLevel"]:
        return {"byte_level": True}
    space = "▁"
    opening: Literal["keep", "one", "all"] = "keep"
    prefix = ""
    for part in parts:
        match part:
            case {"type": "WordPiece", "prefix": str(within)} if within:
                prefix, opening = within, "one"
            case {"type": "Metaspace", "replacement": str(replacement), "prepend_scheme": scheme}:
                space, opening = replacement, "keep" if scheme == "never" else "all"
            case {"type": "Replace", "pattern": {"String": str(replacement)}, "content": " "}:
                space = replacement
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                opening = "one" if start else opening
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                raise BadFileError(f"{path}: decoder {json.dumps(part)} is not known", code="unknown_decoder")
    return {
        "byte_level": False,
        "space": space,
        "byte_fallback": "ByteFallback" in kinds,
        "opening": opening,
        "within": prefix,
    }


def _token_text(token: Any) -> str:
    """Configurations write a token as its text or as a mapping with `content`."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else ""


def _ends(vocabulary: Mapping[str, int], hidden: set[int]) -> list[int]:
    found = [text for text in END_OF_TURN if vocabulary.get(text) in hidden]
    if "<|return|>" in vocabulary and "<|call|>" in vocabulary:
        found = [text for text in found if text != "<|end|>"]  # there it only parts one message from the next
    return [vocabulary[text] for text in found]


def _eos_ids(
    config: Mapping[str, Any], generation: Mapping[str, Any], vocabulary: Mapping[str, int], hidden: set[int]
) -> tuple[int, ...]:
    named = generation.get("eos_token_id")
    stated = [named] if isinstance(named, int) else [token for token in named or () if isinstance(token, int)]
    own = vocabulary.get(_token_text(config.get("eos_token")))
    ids = [*([] if own is None else [own]), *(stated or _ends(vocabulary, hidden))]
    return tuple(dict.fromkeys(ids))


def _template(config: Mapping[str, Any], folder: Path) -> str | None:
    """The chat template: a file of its own wins over the configuration; of several named ones, `default`."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise BadFileError(f"{file}: not UTF-8", code="bad_chat_template") from None
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else None
