"""Structures -> matchers, over llguidance: the one file that knows it.

The library raises for nothing: a matcher that has failed allows the end of the text alone, so every call here asks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

import llguidance
import llguidance.numpy
import numpy as np
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from octavo.errors import EngineError, OctavoError, RequestError, UnsupportedError
from octavo.form import TOO_LARGE
from octavo.grammar.forms import FormWriter, slashed
from octavo.grammar.schemas import reworded
from octavo.request import Structure
from octavo.types import Vocabulary

# White space between the parts of JSON: enough for indentation, never without end.
WHITESPACE = r"[ \n\r\t]{0,8}"
MAX_CHOICES = 10_000
# Of one structure, in the library's units: about 50 per microsecond while compiling, 14 while a mask is computed.
LIMITS = llguidance.LLParserLimits(initial_lexer_fuel=200_000, max_lexer_states=20_000)
FAILED = "structured output: "
_LIMIT = re.compile(r"max is \d|too many|fuel|limit")  # of the library's words for its bounds
_PLACE = re.compile(r"at \d+\(\d+\): failed to compile JSON schema: ")  # in a grammar that nobody wrote


class Matcher:
    """Where one output stands in its structure. taken: how many of its tokens the matcher has seen."""

    def __init__(self, matcher: Any, size: int, ends: Sequence[int]) -> None:
        """size: of the vocabulary. ends: its tokens that end a text."""
        self._matcher = matcher
        self._size = size
        self._ends = ends
        self.taken = 0

    def copy(self) -> Matcher:
        """Another output that stands where this one does."""
        return Matcher(self._matcher.deep_copy(), self._size, self._ends)

    def mask(self, drafts: Sequence[int] = ()) -> Any:
        """uint32 [words of the vocabulary], bit `id & 31` of word `id >> 5` set for every token that may come, after
        `drafts` if those may come; None if they may not. Raises EngineError for a matcher that has failed."""
        if drafts and max(drafts) >= self._size:  # a row of the model that is no token: the library would fail for good
            return None
        mask = llguidance.numpy.allocate_token_bitmask(1, self._size)
        taken = self._matcher.try_consume_tokens(list(drafts)) if drafts else 0
        if taken == len(drafts):
            llguidance.numpy.fill_next_token_bitmask(self._matcher, mask, 0)
        if taken and not self._matcher.rollback(taken):
            self._fail()
        self._check()
        if taken < len(drafts) and drafts[taken] in self._ends:
            return self._behind_the_end(drafts)
        return mask[0].view(np.uint32) if taken == len(drafts) else None

    def _behind_the_end(self, drafts: Sequence[int]) -> Any:
        """As `mask`: what is done with may be consumed, but not be tried, and not be taken back."""
        after = self._matcher.deep_copy()
        for token in drafts:
            after.consume_token(token)
        if after.is_error():
            return None
        mask = llguidance.numpy.allocate_token_bitmask(1, self._size)
        llguidance.numpy.fill_next_token_bitmask(after, mask, 0)
        return mask[0].view(np.uint32)

    def ahead(self) -> Sequence[int]:
        """Tokens of what must be spelled next, as the vocabulary would cut it; others may spell the same."""
        found: list[int] = self._matcher.compute_ff_tokens()
        self._check()
        return found

    def accept(self, tokens: Sequence[int]) -> None:
        """Moves on. Raises EngineError for tokens that the mask did not allow."""
        for token in tokens:
            self._matcher.consume_token(token)
        self.taken += len(tokens)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self._fail()

    def _fail(self) -> NoReturn:
        said: str = self._matcher.get_error()  # with the library's state in the lines below
        opening = TOO_LARGE if _LIMIT.search(said) else FAILED
        raise EngineError(f"{opening}{said.strip().partition(chr(10))[0][:200]}")


class _Tokens:
    """A vocabulary as the library asks for it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = vocabulary.bos_id
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.tokens = [vocabulary.token_bytes(token) for token in range(vocabulary.size)]
        for token in vocabulary.special_ids:  # no byte of UTF-8 stands before them: no expression matches them
            self.tokens[token] = b"\xff" + vocabulary.decode([token], skip_special=False).encode()
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.encode(text)


class TokenTable:
    """What the library makes of a vocabulary: 0.3 s for 50,000 tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.eos_ids:
            raise UnsupportedError("structured output needs a tokenizer with an end-of-text token", param="structure")
        wrapper = llguidance.TokenizerWrapper(_Tokens(vocabulary))
        self.library = llguidance.LLTokenizer(wrapper, n_vocab=vocabulary.size, eos_token=list(vocabulary.eos_ids))
        self.size = vocabulary.size
        self.ends = vocabulary.eos_ids
        self._vocabulary = vocabulary

    def special(self, spelling: str) -> int | None:
        """The special token that is spelled so."""
        ids = self._vocabulary.encode(spelling, parse_special=True)
        return ids[0] if len(ids) == 1 and ids[0] in self._vocabulary.special_ids else None


def compile_structure(structure: Structure, tokens: TokenTable) -> Matcher:
    """A matcher at the beginning. Raises RequestError, UnsupportedError that say what cannot be done."""
    try:
        grammar = _form(structure, tokens) if structure.kind == "form" else _grammar(structure)
    except (ValueError, RecursionError, GbnfToLarkError) as error:
        raise RequestError(f"{structure.kind}: {error}", code="invalid_structure", param="structure") from None
    library = llguidance.LLMatcher(tokens.library, grammar, log_level=0, limits=LIMITS)
    if library.is_error():
        raise _refusal(structure, library.get_error())
    matcher = Matcher(library, tokens.size, tokens.ends)
    try:
        for _ in range(2):  # what is too large for the library shows here, not in a step: at times to the second alone
            matcher.copy().mask()
    except EngineError as error:
        raise _refusal(structure, error.message.removeprefix(FAILED).removeprefix(TOO_LARGE)) from None
    return matcher


def _refusal(structure: Structure, said: str) -> OctavoError:
    lines = said.strip().splitlines() or ["it cannot be compiled"]
    said = _PLACE.sub("", lines[0])
    if said.endswith("regex parse error:"):  # the reason stands under the place that it points to
        said += "".join(line.removeprefix("error:") for line in lines if line.startswith("error: "))
    if said == "NoExtensionBias":
        said = "it has no output that ends: a rule goes on in itself for ever"
    said = said.partition(". Enable ")[0]  # an option of the library, which nobody here can give
    if said.startswith("Unimplemented keys: "):
        keys = ", ".join(json.loads(said.removeprefix("Unimplemented keys: ")))
        return UnsupportedError(f"{structure.kind}: not supported: {keys}", param="structure")
    return RequestError(f"{structure.kind}: {said[:500]}", code="invalid_structure", param="structure")


def _grammar(structure: Structure) -> str:
    source = structure.source
    if structure.kind == "json_schema":
        schema = dict(reworded(_schema(source)))
        return str(llguidance.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITESPACE}))
    if structure.kind == "regex":
        return str(llguidance.LLMatcher.grammar_from_regex(source))
    return str(llguidance.LLMatcher.grammar_from_lark(_lark(structure.kind, source)))


def _form(structure: Structure, tokens: TokenTable) -> str:
    """The grammar of a form; structures of other kinds in it stand beside it as grammars of their own."""
    beside: list[dict[str, Any]] = []

    def given(kind: str, source: str) -> str:
        name = f"g{len(beside)}"
        if kind == "json_schema":
            beside.append({"name": name, "json_schema": _bounded(_schema(source), lenient=False)})
        elif kind == "regex":
            beside.append({"name": name, "lark_grammar": f"start: /{slashed(source)}/"})
        else:
            beside.append({"name": name, "lark_grammar": _lark(kind, source)})
        return f"@{name}"

    def value(schema: dict[str, Any], lenient: bool) -> str:
        return json.dumps(_bounded(schema, lenient=lenient))

    lark = FormWriter(tokens.special, tokens.ends, value, given).write(json.loads(structure.source))
    return json.dumps({"grammars": [{"name": "form", "lark_grammar": lark}, *beside]})


def _schema(source: str) -> dict[str, Any]:
    schema = json.loads(source)
    if not isinstance(schema, dict):
        raise ValueError("a schema is an object")
    return schema


def _bounded(schema: dict[str, Any], *, lenient: bool) -> dict[str, Any]:
    return dict(reworded(schema)) | {"x-guidance": {"whitespace_pattern": WHITESPACE, "lenient": lenient}}


def _lark(kind: str, source: str) -> str:
    if kind == "choice":
        return _alternatives(json.loads(source))
    return gbnf_to_lark(source) if "::=" in source else source


def _alternatives(choices: Any) -> str:
    if not isinstance(choices, list) or not 0 < len(choices) <= MAX_CHOICES:
        raise ValueError(f"1 to {MAX_CHOICES} choices")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise ValueError("every choice is a text that is not empty")
    return "start: C\nC: " + " | ".join(json.dumps(choice) for choice in dict.fromkeys(choices))
