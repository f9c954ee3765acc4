"""Reasoning that is bounded: its marks, as the limit of a request (octavo.request.Thinking)."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.request import Thinking
from octavo.text.dialects import harmony
from octavo.text.dialects.dialect import Dialect
from octavo.text.tokenizer import Tokenizer

TAIL = 32  # tokens of a prompt that show whether it ends in open reasoning
_ANALYSIS = f"{harmony.CHANNEL}analysis{harmony.MESSAGE}"
_NEXT = f"{harmony.END}{harmony.START}assistant{harmony.CHANNEL}"  # a call or an answer, as the model likes
_FINAL = f"{_NEXT}final{harmony.MESSAGE}"


def tail_of(tokenizer: Tokenizer, prompt: Sequence[int]) -> str:
    """The end of a prompt's text, special tokens spelled."""
    return tokenizer.decode(prompt[-TAIL:], skip_special=False)


def opens(dialect: Dialect, tail: str) -> bool:
    """Whether the prompt ends in open reasoning."""
    return any(tail.rstrip().endswith(open_) for open_, _ in dialect.thoughts)


def bounded(
    tokenizer: Tokenizer, dialect: Dialect, prompt: Sequence[int], budget: int, *, formed: bool
) -> Thinking | None:
    """formed: a form follows the reasoning and says itself how. None where templates know no reasoning: every budget is
    kept."""
    if dialect.name == harmony.DIALECT.name:
        marks, opened = (_ANALYSIS, harmony.END), False
        closing, again = (harmony.END, harmony.END) if formed else (_NEXT, _FINAL)
    elif dialect.thoughts:
        marks, opened = dialect.thoughts[0], opens(dialect, tail_of(tokenizer, prompt))
        closing = again = f"\n{marks[1]}\n\n" if marks[1].startswith("</") else marks[1]
    else:
        return None
    first, later = (tuple(tokenizer.encode(text, parse_special=True)) for text in (closing, again))
    return Thinking(budget, *marks, first, later, opened)
