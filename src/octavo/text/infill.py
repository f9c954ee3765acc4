"""Prompts of models that fill a gap: text before it and after it, between the tokens that a vocabulary has for them.

Which form a model knows is told by its tokens. The texts are plain: a mark that they spell is no mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.errors import UnsupportedError
from octavo.text.tokenizer import Tokenizer

_SHIELD = "☺"  # stands before a text that must not begin like a new one


@dataclass(frozen=True, slots=True)
class Form:
    """order: marks, and where the two texts stand. ends: further tokens that end what is filled in, where they exist.

    inner: SentencePiece takes the text after the gap for a new one, and would put a space before it.
    """

    order: tuple[str | Literal["before", "after"], ...]
    ends: tuple[str, ...] = ()
    inner: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(part for part in self.order if part not in ("before", "after"))


def _usual(prefix: str, suffix: str, middle: str, *ends: str, inner: bool = False) -> Form:
    return Form((prefix, "before", suffix, "after", middle), ends, inner)


FORMS = (
    _usual("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    _usual("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<reponame>", "<repo_name>", "<file_sep>"),
    _usual("<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-pad>"),
    _usual("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    _usual("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>", inner=True),
    Form(("[SUFFIX]", "after", "[PREFIX]", "before")),
)


class Infill:
    """The form of one tokenizer. stop_ids: what ends the output beside the model's own end of sequence."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UnsupportedError for a vocabulary without such tokens."""
        for form in FORMS:
            marks = {mark: _token(tokenizer, mark) for mark in form.marks}
            if None not in marks.values():
                break
        else:
            raise UnsupportedError("suffix: this model's vocabulary has no tokens around a gap", param="suffix")
        ends = [_token(tokenizer, end) for end in form.ends]
        self._tokenizer = tokenizer
        self._form = form
        self._marks = {mark: token for mark, token in marks.items() if token is not None}
        self.stop_ids = tuple(dict.fromkeys(token for token in (*self._marks.values(), *ends) if token is not None))

    def encode(self, before: str, after: str) -> list[int]:
        """Ends where the model fills in. Begins as texts of this model begin."""
        bos = self._tokenizer.bos_id
        ids = [bos] if bos is not None and self._tokenizer.encode("", add_special=True)[:1] == [bos] else []
        for part in self._form.order:
            if part == "before":
                ids += self._tokenizer.encode(before)
            elif part == "after":
                ids += self._after(after)
            else:
                ids.append(self._marks[part])
        return ids

    def _after(self, text: str) -> list[int]:
        if not self._form.inner:
            return self._tokenizer.encode(text)
        shield, ids = self._tokenizer.encode(_SHIELD), self._tokenizer.encode(_SHIELD + text)
        return ids[len(shield) :] if ids[: len(shield)] == shield else self._tokenizer.encode(text)


def _token(tokenizer: Tokenizer, text: str) -> int | None:
    """The id that is spelled so, if there is one."""
    ids = tokenizer.encode(text, parse_special=True)
    return ids[0] if len(ids) == 1 and tokenizer.pieces.text(ids[0]) == text else None
