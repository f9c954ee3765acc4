"""The vocabulary that a GGUF file carries: checked, then built into a tokenizer core and a table of pieces.

Model "gpt2" is byte-level BPE with a named pre-tokenizer rule; "llama" is SentencePiece BPE, which merges the
neighbours whose union has the highest score: the same as a merge list ordered by score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Core
from tokenizers.models import BPE

from octavo.errors import BadFileError
from octavo.text.bpe_rules import BpeRule, bpe_rule
from octavo.text.pieces import PieceTable

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def _bad(key: str, what: str) -> BadFileError:
    return BadFileError(f"tokenizer.ggml.{key}: {what}", code="bad_tokenizer")


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Spellings and kinds per id, and how text is cut and merged."""

    tokens: list[str]
    kinds: Sequence[int]
    ids: dict[str, int]
    merges: list[tuple[str, str]]
    rule: BpeRule | None  # None: SentencePiece
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    eom_id: int | None
    unknown_id: int | None
    add_bos: bool
    add_eos: bool
    space_prefix: bool

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> GgufVocabulary:
        model = metadata.get("tokenizer.ggml.model")
        if model not in ("gpt2", "llama"):
            raise BadFileError(
                f"tokenizer.ggml.model {model!r} is not known; known are gpt2, llama", code="unknown_tokenizer"
            )
        tokens = _strings(metadata, "tokens")
        if not tokens:
            raise _bad("tokens", "the vocabulary is empty")
        kinds = _kinds(metadata, len(tokens))
        ids = {text: token_id for token_id, text in enumerate(tokens)}
        rule = bpe_rule(str(metadata.get("tokenizer.ggml.pre", "default"))) if model == "gpt2" else None
        merges = _merges(metadata, ids) if rule else _merges_by_score(metadata, tokens, kinds, ids)
        number = {name: _token_id(metadata, name, len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown")}
        return cls(
            tokens=tokens,
            kinds=kinds,
            ids=ids,
            merges=merges,
            rule=rule,
            bos_id=number["bos"],
            eos_id=number["eos"],
            eot_id=number["eot"],
            eom_id=number["eom"],
            unknown_id=number["unknown"],
            add_bos=_flag(metadata, "add_bos_token", rule.add_bos if rule else True),
            add_eos=_flag(metadata, "add_eos_token", False),
            space_prefix=_flag(metadata, "add_space_prefix", rule is None),
        )

    @property
    def hidden(self) -> set[int]:
        return {token_id for token_id, kind in enumerate(self.kinds) if kind in (UNKNOWN, CONTROL)}

    def core(self) -> Core:
        if self.rule:
            core = Core(BPE(self.ids, self.merges, ignore_merges=self.rule.ignore_merges))
            core.pre_tokenizer = self.rule.pre_tokenizer()
        else:
            unknown = None if self.unknown_id is None else self.tokens[self.unknown_id]
            core = Core(BPE(self.ids, self.merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
            prefix = [normalizers.Prepend("▁")] if self.space_prefix else []
            core.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
        for kind, special in ((UNKNOWN, True), (CONTROL, True), (USER_DEFINED, False)):
            texts = [self.tokens[token_id] for token_id, found in enumerate(self.kinds) if found == kind]
            core.add_tokens([AddedToken(text, special=special, normalized=False) for text in texts if text])
        return core

    def pieces(self) -> PieceTable:
        texts: list[str | None] = list(self.tokens)
        for token_id, kind in enumerate(self.kinds):
            if kind == UNUSED:
                texts[token_id] = None
        return PieceTable(
            texts,
            byte_level=self.rule is not None,
            hidden=self.hidden,
            verbatim=[token_id for token_id, kind in enumerate(self.kinds) if kind == USER_DEFINED],
            opening="one" if self.space_prefix else "keep",
        )


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        raise _bad(key, "missing")
    if isinstance(values, (str, bytes)) or not all(isinstance(value, str) for value in values):
        raise _bad(key, "not a list of strings")
    return list(values)


def _kinds(metadata: Mapping[str, Any], size: int) -> Sequence[int]:
    values = metadata.get("tokenizer.ggml.token_type")
    kinds = [NORMAL] * size if values is None else [int(value) for value in values]
    if len(kinds) != size:
        raise _bad("token_type", f"{len(kinds)} entries for {size} tokens")
    return kinds


def _token_id(metadata: Mapping[str, Any], name: str, size: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        raise _bad(f"{name}_token_id", f"{value!r} is no id of {size} tokens")
    return value


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise _bad(key, f"{value!r} is not a boolean")
    return value


def _merges(metadata: Mapping[str, Any], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Each line is two spellings and one space; neither is empty, so the space is never the first character."""
    merges = []
    for rank, line in enumerate(_strings(metadata, "merges")):
        cut = line.find(" ", 1)
        left, right = line[:cut], line[cut + 1 :]
        if cut < 0 or left not in ids or right not in ids or left + right not in ids:
            raise _bad("merges", f"entry {rank}, {line!r}, does not join two tokens into a third")
        merges.append((left, right))
    return merges


def _merges_by_score(
    metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int], ids: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, the third's score descending (ties: lower id first)."""
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise _bad("scores", "missing" if scores is None else f"{len(scores)} entries for {len(tokens)} tokens")
    whole = [token_id for token_id, kind in enumerate(kinds) if kind in (NORMAL, USER_DEFINED)]
    whole.sort(key=lambda token_id: (-float(scores[token_id]), token_id))
    usable = {tokens[token_id] for token_id in whole}
    merges = []
    for token_id in whole:
        text = tokens[token_id]
        if ids[text] != token_id:
            continue  # a later token has the same spelling
        for cut in range(1, len(text)):
            if text[:cut] in usable and text[cut:] in usable:
                merges.append((text[:cut], text[cut:]))
    return merges
