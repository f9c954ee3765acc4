"""What drives real clients: the model that does what it is told, how outcomes are read, kept and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "clients"))
sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
import run
import server
from agents import AGENTS, Run
from install import NAMES

from octavo.server.app import create_app
from octavo.server.config import ServerConfig

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def ask():
    llm = server.ToldLLM()
    with TestClient(create_app(llm, ServerConfig(port=0)), base_url="http://127.0.0.1") as client:
        yield lambda **body: client.post("/v1/chat/completions", json={"model": "default"} | body).json()["choices"][0]
    llm.close()


def test_a_script_that_does_what_it_is_told(ask):
    told = {"role": "user", "content": 'call weather {"city": "Brno"}'}
    assert ask(messages=[told])["message"]["content"] == f"You said: {told['content']}"
    message = ask(messages=[told], tools=[WEATHER])["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Brno"}
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}
    assert ask(messages=[told, message, result], tools=[WEATHER])["message"]["content"] == "The tool said: rain"


def test_a_script_that_keeps_to_schemas(ask):
    schema = {
        "$defs": {"Kind": {"enum": ["a", "b"]}},
        "properties": {"kind": {"$ref": "#/$defs/Kind"}, "ages": {"type": "array", "items": {"type": "integer"}}},
        "required": ["kind", "ages"],
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = ask(messages=[{"role": "user", "content": "Go"}], response_format=wanted)
    assert json.loads(answer["message"]["content"]) == {"kind": "a", "ages": [36]}


def test_forms_are_spelled_by_their_shortest_way():
    call = ["seq", ["mark", "<call>"], ["value", {"const": 1}, False], ["text", "!"]]
    assert server.spelled(call) == "<call>1!"
    assert server.spelled(["either", ["seq"], call]) == "" == server.spelled(["either", call, ["free", ".*", "<call>"]])
    assert server.spelled(["seq", ["until", "</think>", ".*"], ["some", call, ["text", ","]]]) == "</think><call>1!"


@pytest.mark.parametrize(
    ("code", "passed", "failed"),
    [
        ("print('ok: a'); print('noise'); print('ok: b')", ["a", "b"], []),
        ("print('ok: a'); print('failed: b: why'); raise SystemExit(1)", ["a"], ["b: why"]),
        ("print('ok: a'); raise SystemExit('broken')", ["a"], ["exit code 1: broken"]),
    ],
)
def test_what_a_program_says(tmp_path, monkeypatch, code, passed, failed):
    script = tmp_path / "program.py"
    script.write_text(code)
    (tmp_path / "openai" / "bin").mkdir(parents=True)
    (tmp_path / "openai" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setitem(run.PROGRAMS, "openai", str(script))
    outcome = run.program("openai", tmp_path, "http://x", scripted=True, vectors="", home=tmp_path)
    assert (outcome.passed, outcome.failed) == (passed, failed)


def test_what_a_command_must_say(tmp_path):
    def said(words, code=0):
        command = [sys.executable, "-c", f"print(input()); raise SystemExit({code})"]
        return run.runs([Run("x", command, {}, tmp_path, ("wor.?d",), typed=words)])

    assert said("a word").passed == ["x"]
    assert said("nothing").failed[0].startswith("x: exit code 0, without ['wor.?d']")
    assert said("a word", 3).failed[0].startswith("x: exit code 3")


def test_outcomes_are_kept_and_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "version", lambda name, into: "1.0")
    file = tmp_path / "outcomes.json"
    for name, kind, outcome in (
        ("ollama", "scripted", run.Outcome(["a"])),
        ("codex", "scripted", run.Outcome(["x"])),
        ("codex", "scripted", run.Outcome([], ["y: no"])),
        ("ollama", "real", run.Outcome(["b"])),
    ):
        run.keep(file, name, kind, outcome)
    page = run.page(tmp_path, run.kept(file), "m:1b")
    assert "| ollama | 1.0 | 1 of 1 | 1 of 1 | a, b |" in page and "| codex | 1.0 | 0 of 1 | - |  |" in page
    assert page.endswith("- codex, scripted: y: no\n")


def test_every_client_has_a_way(tmp_path):
    assert set(NAMES) == {*run.PROGRAMS, *AGENTS, *run.EVALUATORS}
    for name, plan in (AGENTS | run.EVALUATORS).items():
        (tmp_path / name).mkdir()
        assert all(
            "http://here" in str(vars(one))
            or any("http://here" in path.read_text() for path in (tmp_path / name).rglob("*") if path.is_file())
            for one in plan(tmp_path, "http://here", tmp_path / name)
        )
