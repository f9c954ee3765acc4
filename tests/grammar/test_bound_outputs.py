"""Outputs that are bound to calls: whatever a model would like to say, its dialect's own reader finds what was asked.

Tokens are drawn at random from the masks, over vocabularies that have the marks as special tokens and ones that spell
them.
"""

import json
import random

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from octavo.errors import OctavoError, RequestError, UnsupportedError
from octavo.form import given, structure
from octavo.grammar.structures import Structures
from octavo.request import Structure
from octavo.text.dialects.bound import bound
from octavo.text.dialects.dialect import Call, Said, Tool
from octavo.text.dialects.known import DIALECTS, PLAIN, dialect_of, marks_of, reader_for
from octavo.text.tokenizer import Tokenizer

D = {dialect.name: dialect for dialect in DIALECTS}
TEMPLATES = {name: " ".join((*dialect.signs, *marks_of(dialect))) for name, dialect in D.items()}
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "s": {"type": "string", "maxLength": 6},
        "k": {"type": "string", "enum": ["km", "a mile"]},
        "l": {"type": "array", "items": {"type": "boolean"}},
        "o": {
            "type": "object",
            "properties": {"b": {"type": "boolean"}},
            "required": ["b"],
            "additionalProperties": False,
        },
    },
    "required": ["n", "s"],
    "additionalProperties": False,
}
TOOLS = [Tool("f", SCHEMA, strict=True), Tool("g.h-1", {"type": "object", "additionalProperties": False})]
SCHEMAS = {tool.name: tool.schema for tool in TOOLS}
FORM = given(Structure("json_schema", '{"type":"object","properties":{"a":{"enum":["x","yy"]}},"required":["a"]}'))


def vocabulary(folder, marks):
    """Bytes, some pairs, and the marks as special tokens."""
    spelling = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = {text: number for number, text in enumerate(spelling)}
    merges = [
        ("<", "/"),
        ("t", "o"),
        ("o", "l"),
        ('"', ","),
        ("}", "}"),
        ("Ċ", "<"),
        (">", "Ċ"),
        ("r", "u"),
        ('"', "}"),
    ]
    for pair in merges:
        known["".join(pair)] = len(known)
    core = Core(models.BPE(vocab=known, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True) for text in ("</s>", *marks)])
    core.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_files(folder / "tokenizer.json", {"eos_token": "</s>"}, {})


@pytest.fixture(scope="module", params=[f"{name} {kind}" for name in D for kind in ("special", "spelled")])
def speaking(request, tmp_path_factory):
    """(dialect, tokenizer, structures)"""
    name, kind = request.param.split()
    dialect = dialect_of(TEMPLATES[name])
    marks = [mark for mark in marks_of(dialect) if len(mark) > 1 and kind == "special"]
    tokenizer = vocabulary(tmp_path_factory.mktemp("v"), marks)
    return dialect, tokenizer, Structures(lambda: tokenizer)


def allowed(mask, size):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:size]).tolist()


def draw(speaking, form, seed, begin="", limit=400):
    """The text of an output by chance, after a beginning; None where it did not end by itself. It likes to end, to
    close strings, and to spell marks where it may say anything."""
    dialect, tokenizer, structures = speaking
    matcher, chance, ids = structures.matcher(structure(form)), random.Random(seed), []
    for token in tokenizer.encode(begin, parse_special=True):
        assert token in allowed(matcher.mask(), tokenizer.size), (begin, tokenizer.decode(ids, skip_special=False))
        matcher.accept([token])
        ids.append(token)
    ends, wanted = set(tokenizer.eos_ids), []
    quote = tokenizer.encode('"')[0]
    for _ in range(limit):
        may = allowed(matcher.mask(), tokenizer.size)
        if ends & set(may) and chance.random() < 0.3:
            break
        if not wanted and len(may) > 100 and chance.random() < 0.2:
            wanted = tokenizer.encode(chance.choice(marks_of(dialect)), parse_special=True)
        choice = wanted.pop(0) if wanted else quote if quote in may and chance.random() < 0.2 else chance.choice(may)
        if choice not in may:
            wanted, choice = [], chance.choice(may)
        if choice in ends:
            break
        matcher.accept([choice])
        ids.append(choice)
    else:
        return None
    return tokenizer.decode(ids, skip_special=False)


def heard(speaking, text, tail="", schemas=SCHEMAS):
    reader = reader_for(speaking[0], schemas, tail)
    parts = [part for char in text for part in reader.push(char)] + reader.finish()
    return [part for part in parts if isinstance(part, Call)], "".join(
        part.text for part in parts if isinstance(part, Said) and not part.reasoning
    )


def check(call):
    value = json.loads(call.arguments)
    if call.name == "g.h-1":
        assert isinstance(value, dict)
        return
    assert call.name == "f" and {"n", "s"} <= set(value) <= {"n", "s", "k", "l", "o"}
    assert type(value["n"]) is int and 0 <= value["n"] <= 99
    assert isinstance(value["s"], str) and len(value["s"]) <= 6
    assert value.get("k", "km") in ("km", "a mile")
    assert all(type(item) is bool for item in value.get("l", []))
    assert "o" not in value or (set(value["o"]) == {"b"} and type(value["o"]["b"]) is bool)


def opened(dialect):
    return dialect.thoughts[0][0] if dialect.thoughts else ""


@pytest.mark.parametrize("several", [False, True])
def test_a_forced_call_is_a_call(speaking, several):
    dialect = speaking[0]
    form = bound(dialect, "", TOOLS, forced=True, several=several, form=None)
    counts = []
    for seed in range(12):
        text = draw(speaking, form, seed)
        if text is None:
            continue
        calls, said = heard(speaking, text)
        assert said.strip() == "" and calls, text
        for call in calls:
            check(call)
        counts.append(len(calls))
    assert len(counts) >= 4 and (several or set(counts) == {1})
    assert not several or max(counts) > 1 or dialect.name == "harmony"


def test_reasoning_may_stand_before(speaking):
    """Any text up to its mark, where the prompt has not opened it either; a prompt that closed it leaves none."""
    dialect = speaking[0]
    if not dialect.thoughts:
        return
    (open_, close), *_ = dialect.thoughts
    forced = {"forced": True, "several": False, "form": None}
    begin = f"{open_}Hm {{}} <x>{close}\n"
    text = draw(speaking, bound(dialect, "Hi", TOOLS, **forced), 1, begin)
    assert len(heard(speaking, text)[0]) == 1 and text.startswith(begin)
    inside = draw(speaking, bound(dialect, f"a{open_}\n", TOOLS, **forced), 2, f"Hm{close}")
    assert len(heard(speaking, inside, f"a{open_}\n")[0]) == 1
    spoken = draw(speaking, bound(dialect, f"a{open_}\n", [], forced=False, several=False, form=FORM), 3, f"Hm{close}")
    assert json.loads(heard(speaking, spoken, f"a{open_}\n")[1])["a"] in ("x", "yy")
    with pytest.raises(AssertionError):
        draw(speaking, bound(dialect, f"{open_}{close}\n\n", TOOLS, **forced), 4, begin)


def test_a_strict_tool_leaves_text_free_and_binds_its_calls(speaking):
    dialect = speaking[0]
    assert bound(dialect, "", TOOLS[1:], forced=False, several=True, form=None) is None
    form = bound(dialect, "", TOOLS, forced=False, several=True, form=None)
    prefix = {"harmony": "<|channel|>final<|message|>"}.get(dialect.name, "")
    said = f"{prefix}Well, a < b: x"
    _, tokenizer, structures = speaking
    matcher = structures.matcher(structure(form))
    for token in tokenizer.encode(said, parse_special=True):
        assert token in allowed(matcher.mask(), tokenizer.size)
        matcher.accept([token])
    assert set(tokenizer.eos_ids) & set(allowed(matcher.mask(), tokenizer.size))
    called = opening(dialect)
    found = 0
    for seed in range(6):
        text = draw(speaking, form, seed, called)
        if text is not None:
            calls, _ = heard(speaking, text)
            assert calls, text
            for call in calls:
                check(call)
            found += 1
    assert found >= 2


def opening(dialect):
    """A text and the beginning of a call."""
    if dialect.name == "harmony":
        return "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary"
    return dialect.blocks[-1].open if dialect.bare else f"Let me see. {dialect.blocks[0].open}"


def test_a_call_or_a_form(speaking):
    dialect = speaking[0]
    form = bound(dialect, "", TOOLS, forced=False, several=False, form=FORM)
    kinds = set()
    for seed in range(40):
        if len(kinds) == 2:
            break
        text = draw(speaking, form, seed)
        if text is None:
            continue
        calls, said = heard(speaking, text)
        kinds.add(bool(calls))
        if calls:
            check(calls[0])
        else:
            assert json.loads(said)["a"] in ("x", "yy"), text
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("name", "schema", "says"),
    [
        ("hermes", {"type": "object", "properties": {"x": {"not": {}}}}, "form: not supported: not"),
        ("qwen", {"type": "object", "anyOf": []}, "anyOf"),
        ("qwen", {"type": "object", "properties": {"x": {"type": "string", "format": "date"}}}, "format"),
        ("glm", {"type": "object", "properties": {"x": {"type": "string", "pattern": "a", "maxLength": 2}}}, "pattern"),
        ("gemma4", {"type": "object", "properties": {"x": {"anyOf": []}}}, "type"),
        ("functiongemma", {"type": "object", "properties": {"x": {"type": "array", "maxItems": 3}}}, "maxItems"),
        ("functiongemma", {"type": "object", "properties": {"a b": {"type": "null"}}}, "a b"),
    ],
)
def test_what_cannot_be_enforced_is_refused_of_strict_tools_alone(tmp_path, name, schema, says):
    tokenizer = vocabulary(tmp_path, ())
    structures = Structures(lambda: tokenizer)

    def compiled(strict):
        tools = [Tool("f", schema, strict=strict)]
        structures.check(structure(bound(D[name], "", tools, forced=True, several=False, form=None)))

    with pytest.raises(OctavoError) as refused:
        compiled(True)
    assert says in str(refused.value)
    compiled(False)


def test_a_template_without_a_way_of_calling_is_refused():
    with pytest.raises(UnsupportedError):
        bound(PLAIN, "", TOOLS, forced=True, several=False, form=None)
    assert bound(PLAIN, "", [], forced=False, several=False, form=FORM) is not None


@pytest.mark.parametrize("form", [["nothing"], {}, ["text"], ["seq", ["text", 1]], ["either"], 7])
def test_what_is_no_form_is_refused(tmp_path, form):
    tokenizer = vocabulary(tmp_path, ())
    with pytest.raises(RequestError, match="form"):
        Structures(lambda: tokenizer).check(Structure("form", json.dumps(form)))
