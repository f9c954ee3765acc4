"""/v1/decisions: probabilities of labels, exactly those of the model; what the model is asked; refusals."""

import json
import math

import openai
import pytest
from chain_model import write_chain
from starlette.testclient import TestClient

from octavo.config import EngineConfig
from octavo.engine.streams import AsyncLLM
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.openai.decisions.scoring import likely

TRUE = {"type": "predicate", "name": "p", "instructions": "It rains."}
CHOICE = {
    "type": "choice",
    "instructions": [{"type": "input_text", "text": "Which?"}, {"type": "input_json", "data": {"a": 1}}],
    "choices": [{"value": "fox", "description": "quick"}, {"value": "The"}, {"value": True}],
}
SCORE = {"type": "score", "instructions": "How?", "levels": [{"label": "bad"}, {"label": "good"}, {"label": "best"}]}


@pytest.fixture
def decide(client):
    def post(**fields):
        body = {"model": "default", "input": "Hi", "questions": [TRUE]} | fields
        return client.post("/v1/decisions", content=json.dumps(body), headers={"content-type": "application/json"})

    return post


def test_what_is_asked_and_answered(decide, llm):
    body = decide(questions=[TRUE, CHOICE]).json()
    predicate, choice = body["answers"]
    assert predicate["type"] == "predicate" and predicate["name"] == "p" and 0 < predicate["probability"] < 1
    assert [each["value"] for each in predicate["probabilities"]] == [True, False]
    assert choice["choice"] == "The" and [each["value"] for each in choice["probabilities"]] == ["fox", "The", True]
    assert sum(each["probability"] for each in choice["probabilities"]) == pytest.approx(1)
    prompts = [llm.tokenizer.decode(call["prompt"], skip_special=False) for call in llm.calls]
    assert len(prompts) == 5
    head = '<|im_start|>user\nHi\n\nWhich?\n{"a": 1}\n\nThe choices:\n- fox: quick\n- The\n- true\nAnswer with one'
    assert all(prompt.startswith(head) for prompt in prompts[2:])
    assert [prompt.rpartition("\n")[2] for prompt in prompts] == ["Yes", "No", "fox", "The", "true"]
    for call in llm.calls:
        assert call["params"].max_tokens == 0 and call["params"].prompt_logprobs == 0
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_conversations(decide, llm):
    talk = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "input_json", "data": [{"b": "é"}]}]},
        {"role": "assistant", "content": "A"},
    ]
    assert decide(input=talk).status_code == 200
    prompt = llm.tokenizer.decode(llm.calls[0]["prompt"], skip_special=False)
    turns = [turn.removesuffix("<|im_end|>\n") for turn in prompt.split("<|im_start|>")[1:]]
    asked = "user\nIt rains.\n\nIs this true? Answer Yes or No."
    assert turns == ["system\nS", 'user\n[{"b": "é"}]', "assistant\nA", asked, "assistant\nYes"]


def test_labels_that_begin_others():
    """log P("a"), P("a b"), P("a c"), P("a b d"), P("e"): each without those that go on from it."""
    labels = [(1,), (1, 2), (1, 3), (1, 2, 4), (5,)]
    own = likely(labels, [math.log(p) for p in (0.5, 0.2, 0.1, 0.05, 0.25)])
    assert [math.exp(one.logprob) for one in own] == pytest.approx([0.2, 0.15, 0.1, 0.05, 0.25])
    assert [one.probability for one in own] == pytest.approx([p / 0.75 for p in (0.2, 0.15, 0.1, 0.05, 0.25)])
    assert likely([(1,), (1, 2)], [-1.0, -1.0])[0].probability == 0.0
    assert [one.probability for one in likely([(1,), (2,)], [-math.inf, -math.inf])] == [0.5, 0.5]
    assert likely([(1,), (2,)], [-2000.0, -2001.0])[0].probability == pytest.approx(1 / (1 + math.exp(-1)))


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    llm = AsyncLLM(EngineConfig(model=write_chain(tmp_path_factory.mktemp("chain")), threads=1, num_blocks=256))
    with TestClient(create_app(llm, ServerConfig(port=0)), "http://127.0.0.1") as client:
        yield llm, client
    llm.close()


def whole_score(client, prompt, label):
    """By the other way: every token of the prompt scored, nothing out of the cache."""
    body = {"model": "default", "prompt": prompt + label, "max_tokens": 0, "echo": True, "logprobs": 0}
    shown = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    return sum(shown["token_logprobs"][-len(label) :])


def test_probabilities_are_those_of_the_model_and_the_prompt_is_computed_once(real):
    llm, client = real
    body = {"model": "default", "input": "x" * 96, "questions": [SCORE, TRUE]}
    before = llm.stats()
    answers = client.post("/v1/decisions", json=body).json()
    spent = llm.stats().cached_tokens - before.cached_tokens
    assert answers["usage"]["input_tokens"] > 250
    assert spent >= 4 * 96  # of five labels, one computes the input
    score, _ = answers["answers"]
    text = (
        "x" * 96
        + "\n\nHow?\n\nThe levels, from the lowest to the highest:\n- bad\n- good\n- best\nAnswer with one of them."
    )
    prompt = llm.encode_chat([{"role": "user", "content": text}], add_generation_prompt=True)
    scores = [whole_score(client, prompt, llm.tokenizer.encode(label)) for label in ("bad", "good", "best")]
    assert [each["logprob"] for each in score["probabilities"]] == pytest.approx(scores, rel=1e-12)
    masses = [math.exp(value - max(scores)) for value in scores]
    expected = [mass / sum(masses) for mass in masses]
    assert [each["probability"] for each in score["probabilities"]] == pytest.approx(expected)
    assert score["score"] == pytest.approx(expected[1] + 2 * expected[2]) and score["confidence"] == max(expected)
    again = client.post("/v1/decisions", json=body).json()
    assert again["answers"] == answers["answers"] and again["usage"]["input_tokens_details"]["cached_tokens"] > 250
    stats = llm.stats()
    assert stats.running == stats.waiting == 0 and stats.blocks_free + stats.blocks_cached == stats.blocks_total


def test_the_official_client(live):
    with openai.OpenAI(base_url=live, api_key="none", max_retries=0) as official:
        decision = official.decisions.create(model="toy/model", input="Hi", questions=[TRUE, CHOICE, SCORE])
        assert [answer.type for answer in decision.answers] == ["predicate", "choice", "score"]
        assert decision.answers[1].probabilities[2].value is True
        assert sum(each.probability for each in decision.answers[2].probabilities) == pytest.approx(1)
        with pytest.raises(openai.BadRequestError) as refused:
            official.decisions.create(model="toy/model", input="Hi", questions=[{"type": "predicate"}])
        assert refused.value.param == "questions[0].instructions"


def test_refusals(decide, llm):
    two = [{"value": "a"}, {"value": "a"}]
    cases = [
        ({"questions": []}, "questions"),
        ({"questions": [TRUE] * 401}, "questions"),
        ({"questions": [{"type": "rank"}]}, "questions[0].type"),
        ({"questions": [TRUE, {"type": "predicate", "instructions": 3}]}, "questions[1].instructions"),
        ({"questions": [TRUE | {"instructions": [{"type": "input_image"}]}]}, "questions[0].instructions[0]"),
        ({"questions": [TRUE | {"levels": []}]}, "questions[0].levels"),
        ({"questions": [TRUE | {"name": 3}]}, "questions[0].name"),
        ({"questions": [CHOICE | {"choices": two[:1]}]}, "questions[0].choices"),
        ({"questions": [CHOICE | {"choices": two}]}, "questions[0].choices"),
        ({"questions": [CHOICE | {"choices": [{"value": True}, {"value": "true"}]}]}, "questions[0].choices"),
        ({"questions": [CHOICE | {"choices": [{"value": 1}, {"value": 2}]}]}, "questions[0].choices[0].value"),
        ({"questions": [SCORE | {"levels": [{"label": "a"}, 3]}]}, "questions[0].levels[1].label"),
        ({"questions": [CHOICE | {"choices": [{"value": str(n)} for n in range(255)]}] * 17}, "questions"),
        ({"input": None}, "input"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": "x" * 9000}, "input"),
        ({"temperature": 1}, "temperature"),
    ]
    for fields, param in cases:
        response = decide(**fields)
        assert response.status_code in (400, 404) and response.json()["error"]["param"] == param, response.text
    assert llm.opened == llm.closed == 0
