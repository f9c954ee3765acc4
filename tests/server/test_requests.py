"""/v1/requests, the logbook, and what they must never hold."""

import io
import json
import logging
import time

import httpx2
import pytest
from listening import listening
from scripted import ANSWER
from starlette.testclient import TestClient

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.keys import Key
from octavo.server.logbook import logbook
from octavo.server.records import KEPT

SECRET = "a secret of the asker"


def asked(client, **fields):
    body = {"model": "toy/model", "messages": [{"role": "user", "content": SECRET}], **fields}
    return client.post("/v1/chat/completions", json=body)


def test_a_request_is_explained(client, llm):
    answer = asked(client, max_tokens=6, seed=5, top_k=9, n=2)
    shown = client.get(f"/v1/requests/{answer.headers['x-request-id']}").json()
    usage = answer.json()["usage"]
    assert (shown["prompt_tokens"], shown["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert shown["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 1
    assert (shown["state"], shown["status"], shown["route"]) == ("ended", 200, "/v1/chat/completions")
    assert shown["sampling"] == {"temperature": 1.0, "top_p": 1.0, "top_k": 9, "seed": 5, "max_tokens": 6, "n": 2}
    assert 0 < shown["first_token_seconds"] <= shown["seconds"] and shown["prepare_seconds"] > 0
    assert [choice["finish_reason"] for choice in shown["choices"]] == ["length", "length"]
    assert shown["prompts"] == [None] and SECRET not in json.dumps(shown)


def test_drafts_are_told_where_there_were_any(client, llm):
    plain = asked(client, max_tokens=4)
    assert "completion_tokens_details" not in plain.json()["usage"]
    llm.drafts = 5, 3
    answer = asked(client, max_tokens=4, n=2)
    details = {"accepted_prediction_tokens": 24, "rejected_prediction_tokens": 16}
    assert answer.json()["usage"]["completion_tokens_details"] == details
    shown = client.get(f"/v1/requests/{answer.headers['x-request-id']}").json()
    first = shown["choices"][0]
    assert (first["drafts"], first["drafts_accepted"], first["acceptance_length"]) == (20, 12, 4.0)
    shown = client.get(f"/v1/requests/{plain.headers['x-request-id']}").json()
    assert shown["choices"][0]["acceptance_length"] is None


def test_a_request_may_limit_drafts(client, llm):
    for said in (False, 0, 3, True):
        assert asked(client, max_tokens=1, speculate=said).status_code == 200
    assert [call["params"].most_drafts > 3 for call in llm.calls] == [False, False, False, True]
    answer = asked(client, max_tokens=1, speculate=-1)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "speculate"


def test_prompts_are_kept_where_that_is_asked_for(llm):
    with TestClient(create_app(llm, ServerConfig(port=0, keep_prompts=True)), base_url="http://127.0.0.1") as client:
        answer = asked(client)
        shown = client.get(f"/v1/requests/{answer.headers['x-request-id']}").json()
    assert shown["prompts"] == [f"<|im_start|>user\n{SECRET}<|im_end|>\n<|im_start|>assistant\n"]


def test_the_cost_of_a_structure(client):
    llm_answer = asked(client, structured_outputs={"regex": "[A-Z][a-z]+"}, max_tokens=3)
    shown = client.get(f"/v1/requests/{llm_answer.headers['x-request-id']}").json()
    assert shown["structure"]["kind"] == "form" and shown["structure"]["compile_seconds"] > 0  # behind reasoning


def test_what_runs_is_shown_while_it_runs(llm, config):
    llm.hold = True  # after the first token
    with listening(llm, config) as address, httpx2.Client(base_url=address) as client:
        body = {"model": "default", "messages": [{"role": "user", "content": SECRET}], "stream": True}
        with client.stream("POST", "/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            (running,) = client.get("/requests").json()["data"]
            assert (running["state"], running["output_tokens"], running["finish_reason"]) == ("decode", 1, None)
            assert running["id"] == answer.headers["x-request-id"]
        while (left := client.get("/requests").json()["data"])[0]["state"] != "ended":
            pass
        assert left[0]["finish_reason"] == "abort"


def test_only_the_owner_sees_a_request(llm):
    config = ServerConfig(port=0, keys=(Key.of("one"), Key.of("two")))
    with TestClient(create_app(llm, config), base_url="http://127.0.0.1") as client:
        client.headers["authorization"] = "Bearer one"
        name = asked(client).headers["x-request-id"]
        assert client.get(f"/v1/requests/{name}").status_code == 200
        client.headers["authorization"] = "Bearer two"
        refused = client.get(f"/v1/requests/{name}")
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "request_not_found"
        assert client.get("/v1/requests").json()["data"] == []


def test_the_ring_is_bounded(client):
    for _ in range(KEPT + 3):
        asked(client, max_tokens=1)
    assert len(client.get("/v1/requests").json()["data"]) == KEPT


def test_a_refused_request_is_not_kept(client):
    assert asked(client, temperature=-1).status_code == 400
    assert client.get("/v1/requests").json()["data"] == []


@pytest.mark.parametrize("kind", ["json", "text"])
def test_the_journal_has_a_line_a_request_and_no_text(client, kind):
    stream = io.StringIO()
    with logbook(kind, stream):
        asked(client, max_tokens=4)
        asked(client, temperature=-1)
        client.get("/v1/models")
        logging.getLogger("octavo.engine").warning("something\nelse")
        logging.getLogger("octavo.server").info("b is loaded")
    text = stream.getvalue()
    assert SECRET not in text and ANSWER[:3] not in text
    lines = text.strip().splitlines()
    if kind == "text":
        assert " POST /v1/chat/completions 200 in " in lines[0] and "-> 4, first after" in lines[0]
        assert " 400 in " in lines[1] and "warning: something" in lines[2]
        assert "note: b is loaded" in lines[4]
    else:
        ok, refused, other, note = map(json.loads, lines)
        assert (note["level"], note["message"]) == ("info", "b is loaded")
        assert (ok["status"], ok["output_tokens"], ok["finish_reason"]) == (200, 4, "length")
        assert refused["status"] == 400 and "model" not in refused and other["message"] == "something\nelse"


def test_the_journal_may_be_off(client):
    stream = io.StringIO()
    with logbook("off", stream):
        asked(client)
    assert stream.getvalue() == ""


class Stuck(io.StringIO):
    def write(self, text):
        time.sleep(3600)


def test_a_reader_that_has_stopped_costs_no_request(client, monkeypatch):
    monkeypatch.setattr("octavo.server.logbook.END_SECONDS", 0.05)
    with logbook("text", Stuck()):
        assert asked(client).status_code == 200 and asked(client).status_code == 200


def test_a_response_in_the_background_is_known_after_its_answer(client):
    answer = client.post("/v1/responses", json={"model": "toy/model", "input": SECRET, "background": True})
    name = answer.headers["x-request-id"]
    while (shown := client.get(f"/v1/requests/{name}")).status_code == 404 or shown.json()["state"] != "ended":
        pass
    assert shown.json()["choices"][0]["finish_reason"] == "stop"
