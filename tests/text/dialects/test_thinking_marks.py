"""The marks of each dialect as the limit of a request: what opens, what closes, what is forced."""

import pytest

from octavo.text.dialects.known import DIALECTS, PLAIN, dialect_of
from octavo.text.dialects.thinking import bounded

D = {dialect.name: dialect for dialect in DIALECTS}


class Letters:
    """A tokenizer of characters."""

    def encode(self, text, *, parse_special=False):
        return [ord(char) for char in text]

    def decode(self, ids, *, skip_special=True):
        return "".join(map(chr, ids))


def limit(dialect, prompt, *, formed=False):
    return bounded(Letters(), dialect, Letters().encode(prompt), 5, formed=formed)


def closing(found):
    return Letters().decode(found.closing)


@pytest.mark.parametrize(
    ("name", "marks", "forced"),
    [
        ("hermes", ("<think>", "</think>"), "\n</think>\n\n"),
        ("deepseek", ("<think>", "</think>"), "\n</think>\n\n"),
        ("mistral", ("[THINK]", "[/THINK]"), "[/THINK]"),
        ("gemma4", ("<|channel>", "<channel|>"), "<channel|>"),
    ],
)
def test_marks_and_what_is_forced(name, marks, forced):
    found = limit(D[name], "Hi")
    assert (found.budget, found.open, found.close, found.opened) == (5, *marks, False)
    assert closing(found) == forced
    assert limit(D[name], f"Hi{marks[0]}\n").opened and not limit(D[name], f"{marks[0]}{marks[1]}").opened


def test_gpt_oss_may_call_once_before_its_final_channel():
    found = limit(D["harmony"], "<|start|>assistant")
    assert (found.open, found.close) == ("<|channel|>analysis<|message|>", "<|end|>")
    assert closing(found) == "<|end|><|start|>assistant<|channel|>"
    assert Letters().decode(found.again) == "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert closing(limit(D["harmony"], "<|start|>assistant", formed=True)) == "<|end|>"


def test_no_reasoning_no_limit():
    assert limit(PLAIN, "Hi") is None and limit(dialect_of("{{ messages }}"), "Hi") is None
