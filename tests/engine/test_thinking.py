"""A budget of reasoning through the whole engine: the same tokens until it is spent, then the mark that closes it."""

import json
from dataclasses import replace

import pytest
from test_drafter import half_right, tree
from tiny_model import VOCAB, write_model
from toy_drafter import ToyDrafter

from octavo import LLM, AsyncLLM
from octavo.config import EngineConfig
from octavo.errors import RequestError
from octavo.request import SamplingParams, Structure
from octavo.text.dialects.bound import after_reasoning
from octavo.text.dialects.known import dialect_of

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if think %}<think>{% endif %}"
POINT = Structure(
    "json_schema",
    '{"type":"object","properties":{"x":{"type":"boolean"}},"required":["x"],"additionalProperties":false}',
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thinking")
    write_model(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return str(folder)


@pytest.fixture(scope="module")
def llm(path, executor):
    with LLM(path, executor=executor, threads=1, num_blocks=128, max_model_len=256) as llm:
        yield llm


def chat(llm, **params):
    params = SamplingParams(**{"temperature": 0.9, "seed": 4, "max_tokens": 40} | params)
    messages = [{"role": "user", "content": "Hello"}]
    return llm.chat(messages, params, chat_template_kwargs={"think": True}, use_tqdm=False)[0].outputs[0]


def test_the_same_tokens_until_it_is_spent(llm):
    free = chat(llm)
    closing = tuple(llm.tokenizer.encode("\n</think>\n\n"))
    for budget in (0, 1, 12):
        bound = chat(llm, thinking_budget=budget)
        assert bound.token_ids[:budget] == free.token_ids[:budget]
        assert bound.token_ids[budget : budget + len(closing)] == closing
    assert chat(llm, thinking_budget=40).token_ids == free.token_ids
    assert llm.generate("Hello", SamplingParams(max_tokens=8, seed=1, thinking_budget=0), use_tqdm=False) != []


def test_a_form_comes_after_the_reasoning(llm):
    output = chat(llm, thinking_budget=5, structure=POINT, max_tokens=80)
    assert output.finish_reason == "stop" and output.text[:200].count("</think>") == 1
    assert set(json.loads(output.text.partition("</think>")[2])) == {"x"}
    plain = llm.generate("Hello", SamplingParams(structure=POINT, max_tokens=60, seed=2), use_tqdm=False)
    assert set(json.loads(plain[0].outputs[0].text)) == {"x"}


@pytest.mark.parametrize("kind", [half_right, tree])
@pytest.mark.parametrize("formed", [False, True])
def test_t37_drafts_change_no_token_beside_the_marks(llm, path, executor, kind, formed):
    """Drafts that hold the closing mark, and what may not come after it."""
    form = after_reasoning(dialect_of(TEMPLATE), "<think>", POINT) if formed else None
    params = SamplingParams(temperature=1.0, seed=2, max_tokens=40, thinking_budget=7, structure=form)
    prompt = "Hello<think>"
    (want,) = llm.generate(prompt, params, use_tqdm=False)
    script = kind({want.prompt_token_ids: want.outputs[0].token_ids}, 4)
    drafter = ToyDrafter(VOCAB, script)
    with LLM(path, executor=executor, threads=1, num_blocks=64, max_model_len=256, drafter=drafter) as other:
        (got,) = other.generate(prompt, params, use_tqdm=False)
        assert other._engine._loop._scheduler.stats.drafts_accepted > 0
    assert got.outputs[0].token_ids == want.outputs[0].token_ids


async def test_another_process_says_the_same(llm, path, executor):
    """Budget, form and proposals are the child's own."""
    form = after_reasoning(dialect_of(TEMPLATE), "<think>", POINT)
    params = SamplingParams(temperature=0.9, seed=6, max_tokens=80, thinking_budget=6, structure=form)
    (want,) = llm.generate("Hello<think>", params, use_tqdm=False)
    config = EngineConfig(model=path, executor=executor, threads=1, num_blocks=64, max_model_len=256)
    other = AsyncLLM(config, process=True)
    try:
        deltas = [delta async for delta in other.stream("Hello<think>", params)]
        stats = other.stats()
    finally:
        other.close()
    assert sum((delta.token_ids for delta in deltas), ()) == want.outputs[0].token_ids
    assert deltas[-1].finish_reason == "stop" and stats.drafts_accepted > 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"thinking_budget": -1}, "thinking_budget"), ({"thinking_budget": 2, "bad_words": ("a",)}, "bad_words")],
)
def test_refusals_name_the_field(llm, fields, param):
    with pytest.raises(RequestError) as refused:
        chat(llm, **fields)
    assert refused.value.param == param


def test_a_template_without_reasoning_keeps_every_budget(shared):
    params = SamplingParams(seed=1, max_tokens=12)
    free = shared.generate("Hello", params, use_tqdm=False)
    bound = shared.generate("Hello", replace(params, thinking_budget=0), use_tqdm=False)
    assert free[0].outputs[0].token_ids == bound[0].outputs[0].token_ids
