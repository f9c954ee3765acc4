"""Structures -> matchers, over llguidance: the one file that knows it.

The library raises for nothing: a matcher that has failed allows the end of the text alone, so every call here asks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import llguidance
import llguidance.numpy
import numpy as np
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from octavo.errors import EngineError, OctavoError, RequestError, UnsupportedError
from octavo.request import Structure
from octavo.types import Vocabulary

# White space between the parts of JSON: enough for indentation, never without end.
WHITESPACE = r"[ \n\r\t]{0,8}"
MAX_CHOICES = 10_000


class Matcher:
    """Where one output stands in its structure. taken: how many of its tokens the matcher has seen."""

    def __init__(self, matcher: Any, size: int) -> None:
        """size: of the vocabulary."""
        self._matcher = matcher
        self._size = size
        self.taken = 0

    def copy(self) -> Matcher:
        """Another output that stands where this one does."""
        return Matcher(self._matcher.deep_copy(), self._size)

    def mask(self, drafts: Sequence[int] = ()) -> Any:
        """uint32 [words of the vocabulary], bit `id & 31` of word `id >> 5` set for every token that may come, after
        `drafts` if those may come; None if they may not. Raises EngineError for a matcher that has failed."""
        mask = llguidance.numpy.allocate_token_bitmask(1, self._size)
        taken = self._matcher.try_consume_tokens(list(drafts)) if drafts else 0
        if taken == len(drafts):
            llguidance.numpy.fill_next_token_bitmask(self._matcher, mask, 0)
        if taken and not self._matcher.rollback(taken):
            raise EngineError(f"structured output: {self._matcher.get_error()}")
        self._check()
        return mask[0].view(np.uint32) if taken == len(drafts) else None

    def accept(self, tokens: Sequence[int]) -> None:
        """Moves on. Raises EngineError for tokens that the mask did not allow."""
        for token in tokens:
            self._matcher.consume_token(token)
        self.taken += len(tokens)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineError(f"structured output: {self._matcher.get_error()}")


class _Tokens:
    """A vocabulary as the library asks for it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = vocabulary.bos_id
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.tokens = [vocabulary.token_bytes(token) for token in range(vocabulary.size)]
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.encode(text)


def token_table(vocabulary: Vocabulary) -> Any:
    """What the library makes of a vocabulary: 0.3 s for 50,000 tokens."""
    if not vocabulary.eos_ids:
        raise UnsupportedError("structured output needs a tokenizer with an end-of-text token", param="structure")
    wrapper = llguidance.TokenizerWrapper(_Tokens(vocabulary))
    return llguidance.LLTokenizer(wrapper, n_vocab=vocabulary.size, eos_token=list(vocabulary.eos_ids))


def compile_structure(structure: Structure, tokens: Any) -> Matcher:
    """A matcher at the beginning. Raises RequestError, UnsupportedError that say what cannot be done."""
    try:
        grammar = _grammar(structure)
    except (ValueError, RecursionError, GbnfToLarkError) as error:
        raise RequestError(f"{structure.kind}: {error}", code="invalid_structure", param="structure") from None
    failed, said = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, tokens)
    if failed:
        raise _refusal(structure, "; ".join(said))
    matcher = llguidance.LLMatcher(tokens, grammar, log_level=0)
    if matcher.is_error():
        raise _refusal(structure, matcher.get_error())
    return Matcher(matcher, tokens.vocab_size)


def _refusal(structure: Structure, said: str) -> OctavoError:
    said = said.strip().splitlines()[0] if said.strip() else "it cannot be compiled"
    said = said.partition(". Enable ")[0]  # an option of the library, which nobody here can give
    if said.startswith("Unimplemented keys: "):
        keys = ", ".join(json.loads(said.removeprefix("Unimplemented keys: ")))
        return UnsupportedError(f"{structure.kind}: not supported: {keys}", param="structure")
    return RequestError(f"{structure.kind}: {said[:500]}", code="invalid_structure", param="structure")


def _grammar(structure: Structure) -> str:
    source = structure.source
    if structure.kind == "json_schema":
        schema = json.loads(source)
        if not isinstance(schema, dict):
            raise ValueError("a schema is an object")
        return str(llguidance.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITESPACE}))
    if structure.kind == "regex":
        return str(llguidance.LLMatcher.grammar_from_regex(source))
    if structure.kind == "choice":
        return str(llguidance.LLMatcher.grammar_from_lark(_alternatives(json.loads(source))))
    lark = gbnf_to_lark(source) if "::=" in source else source
    return str(llguidance.LLMatcher.grammar_from_lark(lark))


def _alternatives(choices: Any) -> str:
    if not isinstance(choices, list) or not 0 < len(choices) <= MAX_CHOICES:
        raise ValueError(f"1 to {MAX_CHOICES} choices")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise ValueError("every choice is a text that is not empty")
    return "start: " + " | ".join(json.dumps(choice) for choice in dict.fromkeys(choices))
