"""Every dialect: its calls, its reasoning, what is no call; the same parts however the text is cut."""
# ruff: noqa: RUF001

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.dialects.dialect import Call, Said
from octavo.text.dialects.known import DIALECTS, dialect_of, marks_of, reader_for

SCHEMAS = {
    "f": {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": "object"}}},
    "g": {},
}
F = Call("f", '{"x": 1}')
G = Call("g", "{}")
D = {dialect.name: dialect for dialect in DIALECTS}
TEMPLATES = {name: " ".join((*dialect.signs, *marks_of(dialect))) for name, dialect in D.items()}

DSML = "｜DSML｜"
DEEPSEEK = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
ONE = "<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>"

# (dialect, output, parts)
OUTPUTS = [
    ("hermes", "Hello <b> world\n", [Said("Hello <b> world\n")]),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', [F]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', [F]),
    (
        "hermes",
        '<think>\nLet me see.\n</think>\n\nCalling.\n<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>\n'
        '<tool_call>{"name":"g"}</tool_call>\n',
        [Said("Let me see.", True), Said("Calling."), F, G],
    ),
    ("hermes", '<tool_call>{"name":"f","arguments":{"x":1}}', [F]),
    ("hermes", '<tool_call>{"name":"f","arg', [Said('<tool_call>{"name":"f","arg')]),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":{"s":"</tool_call> é"}}</tool_call>well',
        [Call("f", '{"s": "</tool_call> é"}'), Said("well")],
    ),
    (
        "hermes",
        '<tool_call>{"name":"f</tool_call>\n<tool_call>{"name":"g"}</tool_call>',
        [Said('<tool_call>{"name":"f</tool_call>'), G],
    ),
    ("hermes", '<tool_call>{"name":"f</tool_call>', [Said('<tool_call>{"name":"f</tool_call>')]),
    ("hermes", "<tool_call>{'no': json}</tool_call> after", [Said("<tool_call>{'no': json}</tool_call> after")]),
    ("hermes", '<tool_call>{"name":"f","arguments":{"x":NaN}}</tool_call>', None),
    ("hermes", "<tool_call>" + "[" * 20_000 + "</tool_call>", None),
    ("hermes", "<think>never closed", [Said("never closed", True)]),
    ("hermes", "<thin", [Said("<thin")]),
    ("qwen", "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>", [F]),
    (
        "qwen",
        "<tool_call><function=f><parameter=s>\n12\nlines\n</parameter>"
        '<parameter=o>{"a": [1]}</parameter></function></tool_call>',
        [Call("f", '{"s": "12\\nlines", "o": {"a": [1]}}')],
    ),
    ("qwen", "<tool_call><function=g></function></tool_call>", [G]),
    ("qwen", "<tool_call><function=g><parameter=x>1</function></tool_call>", None),
    ("llama3", '{"name": "f", "parameters": {"x": 1}}', [F]),
    ("llama3", ' {"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}', [F, G]),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {"x": 1}}', [F]),
    ("llama3", '{"name": "Ann", "parameters": {}}', [Said('{"name": "Ann", "parameters": {}}')]),
    ("llama3", 'See {"name": "f"}', [Said('See {"name": "f"}')]),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]', [F, G]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}', [F, G]),
    ("mistral", "[THINK]so[/THINK]Hi[TOOL_CALLS]oops", [Said("so", True), Said("Hi[TOOL_CALLS]oops")]),
    ("deepseek", DEEPSEEK.format(ONE.format('function<｜tool▁sep｜>f\n```json\n{"x": 1}\n```')), [F]),
    (
        "deepseek",
        "<think>a</think>b" + DEEPSEEK.format(ONE.format('f<｜tool▁sep｜>{"x": 1}') + ONE.format("g<｜tool▁sep｜>{}")),
        [Said("a", True), Said("b"), F, G],
    ),
    (
        "deepseek-dsml",
        f'<{DSML}function_calls>\n<{DSML}invoke name="f">\n<{DSML}parameter name="x" string="false">1</{DSML}parameter>'
        f'\n</{DSML}invoke>\n<{DSML}invoke name="g">\n</{DSML}invoke>\n</{DSML}function_calls>',
        [F, G],
    ),
    ("glm", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", [F]),
    ("glm", "<tool_call>g</tool_call>", [G]),
    ("glm", "<tool_call>f<arg_key>s</arg_key><arg_value>1</arg_value></tool_call>", [Call("f", '{"s": "1"}')]),
    ("glm", "<tool_call>f<arg_key>x</arg_key></tool_call>", None),
    ("functiongemma", "<start_function_call>call:f{x:1}<end_function_call>", [F]),
    (
        "functiongemma",
        "<start_function_call>call:g{a:[1,true,<escape>x,}<escape>],b:{c:null}}<end_function_call>",
        [Call("g", '{"a": [1, true, "x,}"], "b": {"c": null}}')],
    ),
    ("functiongemma", "<start_function_call>call:g{a:}<end_function_call>", None),
    (
        "gemma4",
        '<|channel>thought\nHm.<channel|>Well<|tool_call>call:f{x:1,s:<|"|>é<|"|>}<tool_call|>',
        [Said("Hm.", True), Said("Well"), Call("f", '{"x": 1, "s": "é"}')],
    ),
    ("gemma4", "<|channel>thought\n<channel|>Well", [Said("Well")]),
    ("harmony", "<|channel|>final<|message|>Hi.<|return|>", [Said("Hi.")]),
    (
        "harmony",
        "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"x": 1}<|call|>',
        [Said("So.", True), F],
    ),
    ("harmony", " to=functions.g<|channel|>commentary<|message|>{}", [G]),
    ("harmony", "<|channel|>commentary to=functions.g<|message|>{no", [Said("{no")]),
    ("harmony", "plain words", [Said("plain words")]),
]


def read(name, output, cuts=(), schemas=SCHEMAS, prompt=""):
    reader = reader_for(dialect_of(TEMPLATES[name]), schemas, prompt)
    places = [0, *sorted({min(cut, len(output)) for cut in cuts}), len(output)]
    parts = [part for begin, end in itertools.pairwise(places) for part in reader.push(output[begin:end])]
    return joined([*parts, *reader.finish()])


def joined(parts):
    whole = []
    for part in parts:
        if isinstance(part, Said) and whole and isinstance(whole[-1], Said) and whole[-1].reasoning == part.reasoning:
            part = Said(whole.pop().text + part.text, part.reasoning)
        whole.append(part)
    return whole


@pytest.mark.parametrize(("name", "output", "parts"), OUTPUTS)
def test_what_an_output_says(name, output, parts):
    want = [Said(output)] if parts is None else parts
    assert read(name, output) == want
    assert read(name, output, range(len(output))) == want


@pytest.mark.parametrize("name", D)
def test_a_template_tells_its_dialect(name):
    assert dialect_of(TEMPLATES[name]).name == name
    assert dialect_of("{{ messages }}").name == dialect_of(None).name == "plain"
    assert reader_for(dialect_of(None), SCHEMAS, "") is None


@pytest.mark.parametrize("name", ["hermes", "deepseek", "mistral", "gemma4"])
def test_a_prompt_may_open_the_reasoning(name):
    (open_, close), *_ = D[name].thoughts
    heard = read(name, f"\nwell\n{close}\n\nYes", prompt=f"<assistant>{open_}\n")
    assert heard == [Said("well", True), Said("Yes")]


@pytest.mark.parametrize("name", [name for name in D if name != "harmony"])
def test_without_tools_a_block_is_text(name):
    block = D[name].blocks[0]
    text = f"{block.open}call{block.close or ''}"
    reader = reader_for(dialect_of(TEMPLATES[name]), {}, "")
    assert reader is None or joined([*reader.push(text), *reader.finish()]) == [Said(text)]


CHUNKS = st.sampled_from(
    [mark for dialect in D.values() for mark in marks_of(dialect)]
    + [
        '{"name": "f", "arguments": {"x": 1}}',
        "call:f{x:1}",
        "f[ARGS]{}",
        " to=functions.f",
        "\n",
        " ",
        "é",
        "ab",
        "<",
        "{",
        '"',
        '{"name": "f", "arguments": {"s": "',
    ]
)


@pytest.mark.parametrize("name", D)
@settings(max_examples=150, deadline=None)
@given(
    st.lists(CHUNKS | st.text(max_size=5), max_size=12).map("".join),
    st.lists(st.integers(0, 200), max_size=8),
    st.booleans(),
    st.sampled_from([SCHEMAS, {}, {"f": {}}]),
)
def test_the_cuts_do_not_matter_and_nothing_breaks(name, output, cuts, inside, schemas):
    prompt = D[name].thoughts[0][0] if inside and D[name].thoughts else ""
    if reader_for(dialect_of(TEMPLATES[name]), schemas, prompt) is None:
        return
    parts = read(name, output, (), schemas, prompt)
    assert parts == read(name, output, cuts, schemas, prompt)
    for part in parts:
        if isinstance(part, Call):
            assert part.name and isinstance(json.loads(part.arguments), dict)
        else:
            assert part.text
