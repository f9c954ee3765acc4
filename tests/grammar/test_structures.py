"""Structures and their masks, over a toy vocabulary: what is allowed, what is refused, where an output ends."""

import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import write_tokenizer

from octavo.errors import EngineError, RequestError, UnsupportedError
from octavo.grammar import compiler
from octavo.grammar.structures import Structures
from octavo.request import Structure
from octavo.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

ANN = '{"name":"Ann","age":7}'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grammar")
    write_tokenizer(folder)
    return Tokenizer.from_files(folder / "tokenizer.json", {"eos_token": "</s>"})


@pytest.fixture(scope="module")
def structures(tokenizer):
    return Structures(lambda: tokenizer)


def schema(value):
    return Structure("json_schema", json.dumps(value))


def allowed(mask, size):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:size]).tolist()


def accepts(structures, tokenizer, structure, text):
    """Whether every token of the text may come, and then the end."""
    matcher = structures.matcher(structure)
    for token in [*tokenizer.encode(text), tokenizer.eos_ids[0]]:
        if not matcher.mask()[token >> 5] >> (token & 31) & 1:
            return False
        matcher.accept([token])
    return True


@pytest.mark.parametrize(
    ("structure", "good", "bad"),
    [
        (
            schema(PERSON),
            ['{"name":"Ann","age":7}', '{\n  "name": "Ďáb",\n  "age": 150\n}'],
            ["{}", '{"name":"Ann","age":151}', "Hi"],
        ),
        (schema({"type": "object"}), ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1", '{"a"}']),
        (Structure("regex", "[a-c]{2,3}"), ["ab", "cab"], ["a", "abcd", "xy"]),
        (Structure("choice", '["yes", "no", "no way"]'), ["yes", "no", "no way"], ["maybe", "n", ""]),
        (Structure("grammar", 'start: "x" /[0-9]+/'), ["x1", "x007"], ["x", "1"]),
        (Structure("grammar", 'root ::= "a" root | "b"'), ["b", "aab"], ["a", "ba"]),
    ],
)
def test_what_may_be_said(structures, tokenizer, structure, good, bad):
    for text in good:
        assert accepts(structures, tokenizer, structure, text)
    for text in bad:
        assert not accepts(structures, tokenizer, structure, text)


def test_white_space_is_bounded(structures, tokenizer):
    assert accepts(structures, tokenizer, schema(PERSON), '{"name":' + " " * 8 + '"Ann","age":7}')
    assert not accepts(structures, tokenizer, schema(PERSON), '{"name":' + " " * 9 + '"Ann","age":7}')


@pytest.mark.parametrize("favourite", [" ", "\n", '"', "{", "9"])
def test_a_favourite_token_never_runs_away(structures, tokenizer, favourite):
    """A model that wants one token always, else the first that may come, ends with a valid object."""
    (want,) = tokenizer.encode(favourite)
    matcher, ids = structures.matcher(schema(PERSON)), []
    for _ in range(400):
        may = allowed(matcher.mask(), tokenizer.size)
        token = want if want in may else tokenizer.eos_ids[0] if tokenizer.eos_ids[0] in may else may[0]
        if token == tokenizer.eos_ids[0]:
            break
        matcher.accept([token])
        ids.append(token)
    value = json.loads(tokenizer.decode(ids))
    assert set(value) == {"name", "age"} and 0 <= value["age"] <= 150


HARD = {
    "anything": {},
    "large maximum": {"type": "integer", "minimum": 0, "maximum": 20_000_000_000},
    "digits": {"type": "string", "pattern": "^\\d+$", "maxLength": 6},
    "long": {"type": "string", "maxLength": 2000},
    "least length and pattern": {"type": "string", "minLength": 3, "maxLength": 5, "pattern": "^[a-z]*$"},
    "recursive": {
        "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "additionalProperties": False}},
        "$ref": "#/$defs/n",
    },
    "unicode keys": {"type": "object", "properties": {"ďé": {"const": "☃"}}, "required": ["ďé"]},
    "enumeration": {"enum": ["a", 1, None, {"x": []}]},
}


@pytest.mark.parametrize("name", HARD)
def test_t38_a_model_that_prefers_a_space_says_something_valid_or_is_cut_off(structures, tokenizer, name):
    (space,) = tokenizer.encode(" ")
    matcher, ids = structures.matcher(schema(HARD[name])), []
    for step in range(300):
        may = allowed(matcher.mask(), tokenizer.size)
        token = tokenizer.eos_ids[0] if tokenizer.eos_ids[0] in may else space if space in may else may[step % len(may)]
        if token == tokenizer.eos_ids[0]:
            break
        matcher.accept([token])
        ids.append(token)
    text = tokenizer.decode(ids)
    assert "         " not in text or '"' in text  # white space outside strings is bounded
    if token == tokenizer.eos_ids[0]:
        json.loads(text)
    else:
        assert name in ("anything", "long", "unicode keys")


def test_padding_and_special_tokens_never_come(structures, tokenizer):
    may = allowed(structures.matcher(Structure("regex", "(?s:.*)")).mask(), 32 * (tokenizer.size // 32 + 1))
    assert set(may) & tokenizer.special_ids <= set(tokenizer.eos_ids)
    assert max(may) < tokenizer.size


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_drafts_leave_no_trace(structures, tokenizer, data):
    matcher, plain = structures.matcher(schema(PERSON)), structures.matcher(schema(PERSON))
    for _ in range(6):
        token = data.draw(st.sampled_from(allowed(plain.mask(), tokenizer.size)))
        ahead = matcher.mask([token]).copy()
        matcher.mask([token, *data.draw(st.lists(st.integers(0, tokenizer.size - 1), min_size=1, max_size=3))])
        assert np.array_equal(matcher.mask(), plain.mask())
        if token == tokenizer.eos_ids[0]:
            break
        matcher.accept([token])
        plain.accept([token])
        assert np.array_equal(ahead, plain.mask())


def test_drafts_beyond_the_vocabulary_are_drafts_that_may_not_come(structures, tokenizer):
    """Models have more rows than their tokenizers tokens."""
    matcher, plain = structures.matcher(schema(PERSON)), structures.matcher(schema(PERSON))
    (token, *_) = allowed(plain.mask(), tokenizer.size)
    for drafts in ([tokenizer.size], [token, tokenizer.size + 5], [tokenizer.size, token]):
        assert matcher.mask(drafts) is None
        assert np.array_equal(matcher.mask(), plain.mask())


def test_a_drafted_end_is_an_end(structures, tokenizer):
    """What may come behind it is what may come once it was sampled, for requests that go on over it."""
    end = tokenizer.eos_ids[0]
    done = structures.matcher(Structure("choice", '["yes", "no"]'))
    done.accept(tokenizer.encode("yes"))
    behind = done.copy()
    behind.accept([end])
    assert np.array_equal(done.mask([end]), behind.mask())
    assert np.array_equal(done.mask([end, end]), behind.mask([end]))
    assert done.mask([*tokenizer.encode("y"), end]) is None
    assert allowed(done.mask(), tokenizer.size) == [*tokenizer.eos_ids]


def test_a_token_that_may_not_come_is_an_error(structures, tokenizer):
    matcher = structures.matcher(schema(PERSON))
    with pytest.raises(EngineError):
        matcher.accept(tokenizer.encode("x"))
    with pytest.raises(EngineError):
        matcher.mask()


@pytest.mark.parametrize(
    ("structure", "kind", "says"),
    [
        (schema({"not": {"type": "string"}}), UnsupportedError, "not"),
        (schema({"type": "array", "uniqueItems": True}), UnsupportedError, "uniqueItems"),
        (schema({"type": "strin"}), RequestError, "strin"),
        (schema([]), RequestError, "object"),
        (schema({"$ref": "https://example.com/x"}), RequestError, "not present"),
        (Structure("json_schema", "{"), RequestError, "json_schema"),
        (Structure("json_schema", "[" * 100_000), RequestError, "json_schema"),
        (Structure("regex", "(?=a)b"), RequestError, "look-around"),
        (Structure("regex", "("), RequestError, "unclosed group"),
        (schema({"type": "string", "pattern": "("}), RequestError, "unclosed group"),
        (schema({"$ref": "#"}), RequestError, "no output that ends"),
        (Structure("grammar", "start: start"), RequestError, "no output that ends"),
        (Structure("grammar", "start: nothing"), RequestError, "nothing"),
        (Structure("grammar", "root ::= ("), RequestError, "grammar"),
        (Structure("choice", "[]"), RequestError, "choices"),
        (Structure("choice", '["a", 1]'), RequestError, "choice"),
    ],
)
def test_refusals_say_what(structures, structure, kind, says):
    with pytest.raises(kind) as refused:
        structures.check(structure)
    assert says in str(refused.value) and "\n" not in str(refused.value) and refused.value.http_status == 400


def test_what_is_known_never_waits_for_a_compiler(tokenizer, monkeypatch):
    structures, entered, leave = Structures(lambda: tokenizer), threading.Event(), threading.Event()
    slow = Structure("regex", "slow")
    compile_structure = compiler.compile_structure

    def compiling(structure, tokens):
        if structure == slow:
            entered.set()
            assert leave.wait(30)
        return compile_structure(structure, tokens)

    monkeypatch.setattr(compiler, "compile_structure", compiling)
    structures.check(Structure("regex", "known"))
    other = threading.Thread(target=structures.check, args=(slow,))
    other.start()
    asked = threading.Thread(target=structures.matcher, args=(Structure("regex", "known"),))
    try:
        assert entered.wait(30)
        asked.start()
        asked.join(30)
        assert not asked.is_alive()
    finally:
        leave.set()
        other.join()
