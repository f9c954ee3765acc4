"""/metrics: what it counts, under which names, for whom; the board in docs asks for nothing else."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.keys import Key
from octavo.server.metrics import VLLM
from octavo.server.tally import Distribution

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def config():
    return ServerConfig(port=0, metrics_alias="vllm")


def samples(client):
    """{(name, labels that are not the model): value}."""
    page = client.get("/metrics")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/plain")
    dropped = ("model", "model_name", "engine")
    return {
        (sample.name, *(sample.labels[name] for name in sample.labels if name not in dropped)): sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }


def test_a_request_is_counted_once_everywhere(ask, client):
    assert ask(max_tokens=5, n=2).status_code == 200
    assert ask(messages=[]).status_code == 400
    assert ask(model="other").status_code == 404
    found = samples(client)
    assert found["octavo_requests_total", "length"] == 2 and found["octavo_requests_total", "stop"] == 0
    assert found["octavo_http_requests_total", "POST", "/v1/chat/completions", "200"] == 1
    assert found["octavo_http_requests_total", "POST", "/v1/chat/completions", "400"] == 1
    assert found["octavo_http_requests_total", "POST", "/v1/chat/completions", "404"] == 1
    assert found[("octavo_time_to_first_token_seconds_count",)] == 2
    assert found[("octavo_inter_token_seconds_count",)] == 8
    assert found[("octavo_request_output_tokens_sum",)] == 10
    assert found["octavo_request_output_tokens_bucket", "4.0"] == 0
    assert (
        found["octavo_request_output_tokens_bucket", "8.0"] == 2 == found["octavo_request_output_tokens_bucket", "+Inf"]
    )
    assert found[("octavo_http_requests_open",)] == 1  # the one that asks


def test_drafts_are_counted_by_position(client):
    found = samples(client)
    assert found[("octavo_drafts_total",)] == 9
    assert [found["vllm:spec_decode_num_accepted_tokens_per_pos_total", place] for place in "01"] == [3, 1]


def test_labels_are_few_whatever_is_asked(ask, client):
    for path in ("/nothing/7", "/v1/models/toy/model", "/v1/models/x", "/v1/requests/y"):
        client.get(path)
    routes = {labels[1] for name, *labels in samples(client) if name == "octavo_http_requests_total"}
    assert routes == {"other", "/v1/models/{model}", "/v1/requests/{request}"}


def test_other_names_say_the_same(ask, client):
    ask(max_tokens=5)
    found = samples(client)
    for ours, others in VLLM.items():
        kinds = [name for name, *_ in found if re.fullmatch(rf"{ours}(_total|_count)?", name)]
        assert kinds, ours
        suffix = kinds[0].removeprefix(ours)
        for other in others:
            assert _values(found, other + suffix) == _values(found, ours + suffix) != {}
    labels = re.search(r"vllm:request_success_total\{(.*?)\}", client.get("/metrics").text)[1]
    assert set(re.findall(r"(\w+)=", labels)) == {"model_name", "finished_reason", "engine"}


def _values(found, wanted):
    return {tuple(labels): value for (name, *labels), value in found.items() if name == wanted}


def test_without_an_alias_names_are_ours(llm):
    with TestClient(create_app(llm, ServerConfig(port=0)), base_url="http://127.0.0.1") as client:
        names = {name for name, *_ in samples(client)}
    assert all(name.startswith(("octavo_", "process_")) for name in names)


def test_metrics_need_the_key(llm):
    config = ServerConfig(port=0, keys=(Key.of("secret"),))
    with TestClient(create_app(llm, config), base_url="http://127.0.0.1") as client:
        assert client.get("/metrics").status_code == 401
        found = samples_with(client, "secret")
    assert found["octavo_http_requests_total", "GET", "other", "401"] == 1


def samples_with(client, key):
    client.headers["authorization"] = f"Bearer {key}"
    return samples(client)


def test_openmetrics_is_spoken_where_it_is_asked_for(client):
    page = client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert page.headers["content-type"].startswith("application/openmetrics-text") and page.text.endswith("# EOF\n")


def test_a_distribution_counts_each_value_once():
    found = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        found.add(value)
    found.add(2.0, times=3)
    assert found.counts == [2, 4, 1] and found.total == 18.0


def test_the_board_asks_for_names_that_exist(ask, client):
    ask(max_tokens=5)
    names = {name for name, *_ in samples(client)}
    board = json.loads((DOCS / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(queries) >= 12
    for query in queries:
        asked = set(re.findall(r"\b(?:octavo|process)_\w+", query))
        assert asked and asked <= names, query


def test_the_page_of_metrics_names_every_one(ask, client):
    """docs/observability.md lists every family under its exposed name, and no other."""
    ask(max_tokens=5)
    exposed = {re.sub(r"_(bucket|sum|count)$", "", name) for name, *_ in samples(client) if name.startswith("octavo_")}
    told = set(re.findall(r"`(octavo_\w+)`", (DOCS / "observability.md").read_text()))
    assert told == exposed
