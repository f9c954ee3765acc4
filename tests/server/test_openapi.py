"""The document of the interface: every route is in it, and nothing that it describes makes a fault of ours.

OCTAVO_FUZZ=N asks for N cases an operation, chosen anew each time (`make fuzz`).
"""

import json
import os
import re
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from scripted import ScriptedLLM
from starlette.testclient import TestClient
from test_door import paths_of

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.endpoint import Endpoint

FUZZ = int(os.environ.get("OCTAVO_FUZZ", "0"))


@pytest.fixture(scope="module")
def served(tokenizer, template):
    llm = ScriptedLLM(tokenizer, template)
    return llm, create_app(llm, ServerConfig(allowed_hosts=()))


@pytest.fixture(scope="module")
def document(served):
    return TestClient(served[1]).get("/openapi.json").json()


def test_nothing_is_a_fault_of_ours(served):
    llm, app = served
    answers: Counter[int] = Counter()
    for found in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=FUZZ or 12,
            deadline=None,
            derandomize=not FUZZ,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy())
        def ask(case):
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = "default"  # another name ends it before anything else is looked at
            response = case.call()
            answers[response.status_code] += 1
            assert response.status_code < 500, (case.as_curl_command(), response.text)
            assert llm.opened == llm.closed

        ask()
    print(f"{answers.total()} requests, answers by status: {dict(sorted(answers.items()))}")


def test_every_route_is_described(served, document):
    for path, route in paths_of(served[1].routes):
        assert re.sub(r"\{(\w+)(:\w+)?\}", r"{\1}", route.path) in document["paths"], path
        if isinstance(route.endpoint, Endpoint):
            operation = document["paths"][route.path]["post"]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert route.endpoint.shape is not None and "$ref" in schema, f"{route.path}: say the shape of its bodies"


def test_the_document_resolves(document):
    text = json.dumps(document)
    for name in document["components"]["schemas"]:
        assert f"#/components/schemas/{name}" in text
    assert document["openapi"].startswith("3.1") and document["security"]
    assert document["paths"]["/health/live"]["get"]["security"] == []
    assert "model" in document["components"]["schemas"]["ChatRequest"]["required"]
