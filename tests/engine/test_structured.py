"""Outputs that must have a form, from models that would rather say something else."""

import json
import re

import pytest
from test_drafter import half_right, right, tree, wrong
from tiny_model import VOCAB
from toy_drafter import ToyDrafter

from octavo.errors import RequestError, UnsupportedError
from octavo.request import SamplingParams, Structure

COLOURS = Structure("choice", '["red", "green", "light blue"]')
NUMBER = Structure("regex", "[1-9][0-9]{2,5}")
POINT = Structure(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "ok": {"type": "boolean"}},
            "required": ["x", "ok"],
            "additionalProperties": False,
        }
    ),
)


def valid(structure, text):
    if structure is COLOURS:
        return text in json.loads(COLOURS.source)
    if structure is NUMBER:
        return re.fullmatch(NUMBER.source, text) is not None
    value = json.loads(text)
    return set(value) == {"x", "ok"} and isinstance(value["x"], int) and isinstance(value["ok"], bool)


@pytest.mark.parametrize("structure", [COLOURS, NUMBER, POINT], ids=lambda structure: structure.kind)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_output_is_valid_or_ends_by_length(shared, structure, temperature):
    params = SamplingParams(n=4, temperature=temperature, seed=3, max_tokens=120, structure=structure)
    for output in shared.generate("the", params, use_tqdm=False)[0].outputs:
        assert valid(structure, output.text) if output.finish_reason == "stop" else len(output.token_ids) == 120
        assert structure is POINT or output.finish_reason == "stop"


def test_batch_mates_change_nothing(shared):
    """With and without structures side by side, alone and together."""
    wanted = [
        SamplingParams(temperature=0.9, seed=7, max_tokens=24, structure=structure, logprobs=1)
        for structure in (COLOURS, None, NUMBER, POINT)
    ]
    together = shared.generate(["the"] * 4, wanted, use_tqdm=False)
    for params, mate in zip(wanted, together, strict=True):
        (alone,) = shared.generate("the", params, use_tqdm=False)
        assert alone.outputs[0].token_ids == mate.outputs[0].token_ids


def test_preemption_changes_nothing(shared, make_llm):
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=60, structure=POINT)
    prompts = ["the in an er " * 3] * 6
    tight = make_llm(num_blocks=14)
    assert [output.outputs[0].token_ids for output in tight.generate(prompts, params, use_tqdm=False)] == [
        output.outputs[0].token_ids for output in shared.generate(prompts, params, use_tqdm=False)
    ]
    assert tight.stats().preemptions > 0


@pytest.mark.parametrize("kind", [right, wrong, half_right, tree])
def test_t37_drafts_change_no_token_of_a_structure(shared, make_llm, kind):
    """Right ones, ones that the structure forbids, chains and trees."""
    params = [
        SamplingParams(temperature=1.0, seed=2, max_tokens=40, structure=structure)
        for structure in (COLOURS, POINT, NUMBER)
    ]
    prompts = ["the an", "abc", "in the er"]
    want = shared.generate(prompts, params, use_tqdm=False)
    truth = {output.prompt_token_ids: output.outputs[0].token_ids for output in want}
    llm = make_llm(drafter=ToyDrafter(VOCAB, kind(truth, 4)))
    got = llm.generate(prompts, params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in got] == list(truth.values())
    assert all(output.outputs[0].finish_reason == "stop" for output in got)


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"structure": Structure("json_schema", '{"not": {}}')}, UnsupportedError, "structure"),
        ({"structure": Structure("regex", "(")}, RequestError, "structure"),
        ({"structure": NUMBER, "ignore_eos": True}, RequestError, "ignore_eos"),
        ({"structure": NUMBER, "min_tokens": 2}, RequestError, "min_tokens"),
        ({"structure": NUMBER, "bad_words": ("1",)}, RequestError, "bad_words"),
        ({"structure": NUMBER, "allowed_token_ids": (1,)}, RequestError, "allowed_token_ids"),
    ],
)
def test_refusals_name_the_field(shared, fields, kind, param):
    with pytest.raises(kind) as refused:
        shared.generate("the", SamplingParams(**fields), use_tqdm=False)
    assert refused.value.param == param


def test_a_source_without_end_is_refused():
    with pytest.raises(RequestError):
        SamplingParams(structure=Structure("regex", "a" * 300_000))
