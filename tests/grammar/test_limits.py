"""What is too large to be compiled, or to be a mask, is refused as the caller's, and nothing waits long for it."""

import json

import pytest
from tiny_model import write_tokenizer

from octavo.errors import EngineError, OctavoError, RequestError
from octavo.form import TOO_LARGE
from octavo.grammar.structures import KEPT, Structures
from octavo.request import Request, SamplingParams, Structure
from octavo.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    write_tokenizer(folder)
    return Tokenizer.from_files(folder / "tokenizer.json", {"eos_token": "</s>"})


@pytest.fixture(scope="module")
def structures(tokenizer):
    return Structures(lambda: tokenizer)


def deep(levels):
    schema = '{"type":"object","properties":{"a":' * levels + "true" + "}}" * levels
    return Structure("json_schema", schema)


def wide(count):
    """Alternatives that all have to be joined with all others."""
    parts = [{"anyOf": [{"properties": {f"a{i}{j}": {"type": "string"}}} for j in range(count)]} for i in range(count)]
    return Structure("json_schema", json.dumps({"allOf": parts}))


@pytest.mark.parametrize(
    "structure",
    [
        Structure("regex", "(a{1000}){1000}"),
        deep(300),
        wide(8),
        Structure("choice", json.dumps([str(number) for number in range(10_001)])),
        Structure("form", json.dumps(["seq"] + [["text", "a"]] * 30_000)),
        Structure("form", "[" * 5_000),
    ],
    ids=["counts", "deep", "wide", "choices", "parts", "nested"],
)
def test_what_is_too_large_is_refused(structures, structure):
    with pytest.raises(OctavoError) as refused:
        structures.check(structure)
    assert refused.value.http_status == 400 and "\n" not in str(refused.value) and len(str(refused.value)) < 700


@pytest.mark.parametrize(
    "structure",
    [
        Structure("regex", "(x+x+)+y"),
        Structure("regex", "|".join(f"(.*{letter}.*){{50}}" for letter in "abcdefghij")),
        Structure("regex", r"(\p{L}|\p{N}|\w){1,60000}"),
        Structure("json_schema", json.dumps({"enum": [f"x{number}" for number in range(10_000)]})),
        Structure("json_schema", '{"type":"array","minItems":100000,"maxItems":1000000}'),
        Structure("json_schema", '{"type":"string","maxLength":1000000}'),
        Structure("choice", json.dumps([f"choice {number}" for number in range(10_000)])),
    ],
)
def test_what_is_only_large_is_served(structures, tokenizer, structure):
    matcher = structures.matcher(structure)
    for _ in range(20):
        mask = matcher.mask()
        token = next(token for token in range(tokenizer.size) if mask[token >> 5] >> (token & 31) & 1)
        if token in tokenizer.eos_ids:
            break
        matcher.accept([token])


def test_the_last_few_are_kept(tokenizer):
    structures = Structures(lambda: tokenizer)
    for number in range(KEPT + 5):
        structures.check(Structure("regex", f"a{{{number}}}"))
    assert len(structures._known) == KEPT


def test_what_a_request_needs_is_kept_until_it_ends(tokenizer, monkeypatch):
    structures = Structures(lambda: tokenizer)
    request = Request("a", (1,), SamplingParams(structure=Structure("regex", "ab")))
    structures.ready(request)
    for number in range(KEPT):
        structures.check(Structure("regex", f"a{{{number}}}"))
    with monkeypatch.context() as patched:
        patched.setattr(structures, "_compiled", None)  # nothing may be compiled in a step
        assert structures.bounds(request).mask((), (), tokenizer.size) is not None
    structures.forget("a")
    assert not structures._held


@pytest.mark.parametrize("schema", ['{"type":"integer"}', '{"type":"number"}', '{"type":"array","items":{}}'])
def test_a_favourite_digit_ends_by_length_or_is_valid(structures, tokenizer, schema):
    matcher, ids = structures.matcher(Structure("json_schema", schema)), []
    (nine,) = tokenizer.encode("9")
    for _ in range(300):
        mask = matcher.mask()
        may = [token for token in range(tokenizer.size) if mask[token >> 5] >> (token & 31) & 1]
        token = nine if nine in may else may[0]
        if token in tokenizer.eos_ids:
            break
        matcher.accept([token])
        ids.append(token)
    assert len(ids) == 300 and set(tokenizer.decode(ids)) <= set("[9")


def test_a_source_without_end_is_refused_before_it_is_read():
    with pytest.raises(RequestError):
        SamplingParams(structure=Structure("form", "a" * (2 << 20)))


def test_what_shows_at_a_later_token_says_that_it_is_too_large(structures, tokenizer):
    """Hundreds of properties that may all come next: nothing of them is seen before the object is open."""
    pattern = {"type": "string", "pattern": "^(a|b)*c{1,9}$"}
    schema = {"type": "object", "properties": {f"k{number}": pattern for number in range(700)}}
    matcher = structures.matcher(Structure("json_schema", json.dumps(schema)))
    with pytest.raises(EngineError) as failed:
        for token in tokenizer.encode('{"k699": "c", "'):
            matcher.mask()
            matcher.accept([token])
    assert failed.value.message.startswith(TOO_LARGE)
