"""Any JSON body, against a real engine: 2xx or 4xx, never 500, never a dead engine, and nothing held afterwards."""

import json

import pytest
from chain_model import write_chain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from octavo.config import EngineConfig
from octavo.engine.streams import AsyncLLM
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.openai.responses.shapes import ResponseRequest
from octavo.server.openai.shapes import ChatRequest, CompletionRequest

NUMBERS = [0, 1, 2, 5, -1, 20, 21, 2**31, 2**63, 2**70, 0.5, 1.0, -2.5, 1e-12, 1e308, 1e999]
NUMBERS += [True, False, None]
SCALARS = st.sampled_from([*NUMBERS, "", "a", "auto", "\ud800", "�", "x" * 300])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["0", "a", "65", "role"]), inner, max_size=2)
    ),
    max_leaves=5,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", 3]), "content": st.just("A") | VALUES}
    ),
    max_size=3,
)


ITEMS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "x"]),
            "role": st.sampled_from(["user", "assistant", "system", "tool", 3]),
            "content": st.just("A") | VALUES,
            "call_id": st.just("A") | VALUES,
            "name": st.just("A"),
            "arguments": st.just("{}") | VALUES,
            "output": st.just("A") | VALUES,
        }
    ),
    max_size=3,
)


def bodies(shape, first, prompts, limit="max_tokens"):
    names = sorted(set(shape.__struct_fields__) - {"model", first, limit})
    fields = st.dictionaries(st.sampled_from([*names, "unknown"]), VALUES, max_size=4)
    sure = st.fixed_dictionaries({"model": st.just("default"), first: prompts, limit: st.sampled_from([3, 0, 12])})
    return st.builds(lambda base, more: base | more, sure, fields) | VALUES


OPTIONS = st.lists(st.fixed_dictionaries({"value": SCALARS, "label": SCALARS, "description": SCALARS}), max_size=3)
QUESTIONS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["predicate", "choice", "score", "x"]), "instructions": st.just("A") | VALUES},
        optional={"choices": OPTIONS | VALUES, "levels": OPTIONS | VALUES, "name": VALUES},
    ),
    max_size=2,
)
DECISIONS = st.fixed_dictionaries(
    {"model": st.just("default"), "input": st.just("A") | ITEMS | VALUES, "questions": QUESTIONS | VALUES}
)

BODIES = {
    "/v1/decisions": DECISIONS,
    "/v1/chat/completions": bodies(ChatRequest, "messages", st.just([{"role": "user", "content": "A"}]) | MESSAGES),
    "/v1/responses": bodies(ResponseRequest, "input", st.just("A") | ITEMS | VALUES, "max_output_tokens"),
    "/v1/completions": bodies(CompletionRequest, "prompt", st.just("A") | st.just([65, 66]) | VALUES),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    llm = AsyncLLM(EngineConfig(model=write_chain(tmp_path_factory.mktemp("chain")), threads=1, num_blocks=64))
    with TestClient(create_app(llm, ServerConfig(port=0)), "http://127.0.0.1", raise_server_exceptions=False) as client:
        yield llm, client
    llm.close()


@pytest.mark.parametrize("path", BODIES)
def test_no_body_is_our_fault(served, path):
    llm, client = served
    seen = set()

    @settings(max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(BODIES[path])
    def post(body):
        content = json.dumps(body).encode()
        response = client.post(path, content=content, headers={"content-type": "application/json"})
        seen.add(response.status_code)
        assert response.status_code == 200 or 400 <= response.status_code < 500, (content, response.text)
        if response.status_code != 200:
            error = response.json()["error"]
            assert error["message"] and error["code"] and "\n" not in error["message"], content

    post()
    assert {200, 400} <= seen
    assert llm.error is None
    stats = llm.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
