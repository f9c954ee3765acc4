"""What a form leaves no choice about is proposed at once: the same tokens, in fewer steps."""

import json

import pytest
from test_drafter import half_right
from tiny_model import VOCAB
from toy_drafter import ToyDrafter

from octavo.drafters import ahead
from octavo.request import SamplingParams, Structure

KEYS = ["a rather long name", "another long name", "the last of them"]
RECORD = Structure(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {key: {"enum": [1, "two"]} for key in KEYS},
            "required": KEYS,
            "additionalProperties": False,
        }
    ),
)
CHOICE = Structure("choice", '["the answer is yes", "the answer is no"]')
PARAMS = [
    SamplingParams(temperature=1.2, seed=seed, max_tokens=110 if structure else 12, logprobs=2, structure=structure)
    for seed, structure in enumerate((RECORD, None, CHOICE, RECORD))
]
PROMPTS = ["the", "in an", "er", "a"]


def run(llm):
    found = [output.outputs[0] for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    return [(one.token_ids, one.text, one.logprobs, one.finish_reason) for one in found], llm.stats()


@pytest.fixture
def plain(make_llm, monkeypatch):
    """Without proposals."""
    with monkeypatch.context() as patched:
        patched.setattr(ahead, "MOST", 0)
        return run(make_llm(speculate="off"))


@pytest.mark.parametrize("options", [{}, {"plans_outstanding": 2}, {"max_num_batched_tokens": 9, "max_logit_rows": 8}])
def test_every_bit_is_as_without_proposals(make_llm, plain, options, executor):
    outputs, stats = run(make_llm(speculate="off", **options))
    wanted, before = plain
    exact = slice(None) if executor == "native" else slice(2)
    assert [one[exact] for one in outputs] == [one[exact] for one in wanted]
    assert before.drafts == 0 < stats.drafts_accepted <= stats.drafts
    assert stats.drafts_accepted >= 10 and (options or stats.steps < before.steps)


def test_preemption_changes_nothing(make_llm, plain):
    llm = make_llm(speculate="off", num_blocks=9, enable_prefix_caching=False)
    assert [one[0] for one in run(llm)[0]] == [one[0] for one in plain[0]]
    assert llm.stats().preemptions > 0 and llm.stats().drafts_accepted > 0


def test_another_drafter_stands_behind(make_llm, plain):
    """Its proposals come where the form leaves a choice, and for outputs without a form."""
    wanted = plain[0]
    ids = [tuple(make_llm().tokenizer.encode(prompt, add_special=True)) for prompt in PROMPTS]
    truth = {prompt: one[0] for prompt, one in zip(ids, wanted, strict=True)}
    llm = make_llm(drafter=ToyDrafter(VOCAB, half_right(truth, 4)))
    outputs, stats = run(llm)
    assert [one[0] for one in outputs] == [one[0] for one in wanted]
    assert 0 < stats.drafts_accepted < stats.drafts


def test_outputs_without_a_form_go_the_short_way(make_llm):
    llm = make_llm(speculate="off")
    llm.generate(PROMPTS, SamplingParams(max_tokens=12), use_tqdm=False)
    assert llm.stats().drafts == 0 and llm.stats().masks == 0
