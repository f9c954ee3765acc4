"""`octavo load` as a user runs it, against an endpoint in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ENDPOINT = Path(__file__).parents[1] / "load" / "fake_endpoint.py"


@pytest.fixture(scope="module")
def endpoint():
    child = subprocess.Popen([sys.executable, ENDPOINT, "0.001", "0.001", "4"], stdout=subprocess.PIPE, text=True)
    yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    child.kill()
    child.wait()
    child.stdout.close()


def test_an_open_loop(octavo, endpoint, tmp_path):
    files = {name: tmp_path / f"run.{name}" for name in ("json", "csv", "html")}
    words = ("--rate", 200, "--requests", 20, "--slo", "ttft=5s", "--input-tokens", "8-16", "--arrivals", "constant")
    outcome = octavo(
        *("load", endpoint, *words, "--json", files["json"], "--csv", files["csv"], "--report", files["html"])
    )
    assert outcome.code == 0 and outcome.err == ""
    assert "answered 20 of 20" in outcome.out and "100.0% of all (ttft ≤ 5,000 ms)" in outcome.out
    assert "time to first token" in outcome.out and "200 requests per second (constant)" in outcome.out
    run = json.loads(files["json"].read_text())
    assert run["model"] == "fake" and [round(row["due"], 4) for row in run["requests"][:3]] == [0, 0.005, 0.01]
    assert all(8 <= row["input_tokens"] <= 16 for row in run["requests"])
    assert files["csv"].read_text().count("\n") == 21 and "<svg" in files["html"].read_text()


def test_a_closed_loop_and_a_trace(octavo, endpoint, tmp_path):
    assert "2 users" in octavo("load", endpoint, "--concurrency", 2, "--requests", 6).out
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "".join(json.dumps({"timestamp": at, "input_length": 9, "output_length": 2}) + "\n" for at in (0, 500, 900))
    )
    outcome = octavo("load", endpoint, "--trace", trace, "--time-scale", 20)
    assert "answered 3 of 3" in outcome.out and "the trace trace.jsonl, times / 20, lengths x 1" in outcome.out


def test_two_runs(octavo, endpoint, tmp_path):
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, rate in zip(paths, (300, 400), strict=True):
        assert octavo("load", endpoint, "--rate", rate, "--requests", 25, "--json", path).code == 0
    outcome = octavo("load", "--compare", *paths, "--report", tmp_path / "both.svg")
    assert outcome.code == 0 and "B / A" in outcome.out and "differs: rate: 300.0 and 400.0" in outcome.out
    assert "time to first token, p99 ms" in outcome.out and (tmp_path / "both.svg").exists()


def test_a_server_that_refuses_everything(octavo, refused, endpoint):
    line = refused(69, "load_refused", "load", f"{endpoint}/nowhere", "--rate", 5)
    assert "/nowhere/models: HTTP 404 not_found: no such path" in line


@pytest.mark.parametrize(
    ("words", "code", "word"),
    [
        ([], 2, "usage"),
        (["URL"], 2, "usage"),
        (["URL", "--rate", 5, "--concurrency", 3], 2, "usage"),
        (["URL", "--rate", "fast"], 2, "usage"),
        (["URL", "--rate", -1], 2, "usage"),
        (["URL", "--rate", 0], 2, "usage"),
        (["URL", "--rate", 5, "--duration", 0], 2, "usage"),
        (["URL", "--rate", 5, "--burstiness", 3], 2, "usage"),
        (["URL", "--rate", 5, "--input-tokens", "many"], 2, "usage"),
        (["URL", "--rate", 5, "--slo", "fast"], 2, "usage"),
        (["URL", "--rate", 5, "--body", "[]"], 2, "usage"),
        (["URL", "--rate", 5, "--body", "{"], 2, "usage"),
        (["URL", "--rate", 5, "--report", "a.pdf"], 2, "usage"),
        (["URL", "--rate", 5, "--json", "/nowhere/at/all"], 66, "file_missing"),
        (["URL", "--rate", 5, "--api-key-file", "/nowhere/at/all"], 66, "file_missing"),
        (["URL", "--trace", "/nowhere/at/all"], 66, "file_missing"),
        (["ftp://host", "--rate", 5], 2, "usage"),
        (["http://127.0.0.1:9", "--rate", 5], 69, "load_unreachable"),
        (["--compare", "/nowhere", "/nowhere"], 66, "file_missing"),
    ],
)
def test_what_is_refused(refused, endpoint, words, code, word):
    refused(code, word, "load", *(endpoint if each == "URL" else each for each in words))
