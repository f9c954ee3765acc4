"""`octavo serve`, the whole command: the engine in a child process, an answer over HTTP, the end by a signal."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def serve(tmp_path):
    """serve(words...) -> (Popen, address)."""
    started = []

    def start(*words):
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OCTAVO_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "octavo.cli.main", "serve", *map(str, words)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(child)
        line = child.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), child.stderr.read()
        return child, line.split()[-1]

    yield start
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()


def test_an_answer_and_the_end(serve, chain):
    child, address = serve(chain, "--port", 0, "--served-model-name", "toy", "--threads", 1, "--num-blocks", 64)
    body = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{address}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    assert answer["choices"][0]["message"]["content"] == "hi" and answer["model"] == "toy"
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 0
    said = child.stderr.read()
    assert "tokens that fit" in said and "Traceback" not in said and "leaked" not in said
    assert child.stdout.read() == ""


def _ask(address, model):
    """(status, text or code)."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{address}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["code"]


def _engines(child):
    """Processes of engines below a server."""
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    return {pid for pid in map(int, children) if b"octavo.engine.child" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc")
def test_two_models_of_which_one_dies(serve, chain):
    """Each in a process of its own: what is loaded last is killed, the other answers, the log says which one it was."""
    words = ("--port", 0, "--served-model-name", "a", "--threads", 1, "--num-blocks", 64, "--alias", "fast=b")
    child, address = serve(chain, *words, "--model", f"{chain},served-model-name=b,max-num-seqs=2")
    first = _engines(child)
    assert len(first) == 1 and _ask(address, "fast") == (200, "hi")
    (second,) = _engines(child) - first
    os.kill(second, signal.SIGKILL)
    assert _ask(address, "b")[0] in (200, 500, 503)  # loaded again, or not so soon
    assert _ask(address, "a") == (200, "hi") and first <= _engines(child)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 0
    said = child.stderr.read()
    assert "note: b is loaded" in said and "engine_dead: b: the engine process died, killed by signal 9" in said


@pytest.mark.parametrize(
    ("words", "code", "word"),
    [
        (["--port", 99999], 78, "bad_config"),
        (["--host", "0.0.0.0"], 78, "key_required"),
        (["--host", "203.0.113.1", "--insecure-no-auth"], 69, "cannot_bind"),
        (["--api-key-file", "absent"], 66, "file_missing"),
        (["--port", "x"], 2, "usage"),
        (["--model", "b,max-modle-len=4"], 2, "usage"),
        (["--model", "b,max-model-len=four"], 2, "usage"),
        (["--model", "b,max-model-len=0"], 2, "usage"),
        (["--model", "absent"], 66, "file_missing"),
        (["--served-model-name", "a", "--model", "b,served-model-name=a"], 78, "bad_config"),
        (["--alias", "a"], 2, "usage"),
        (["--alias", "a=absent"], 78, "bad_config"),
        (["--idle-unload", "0"], 2, "usage"),
        (["--memory-budget", "1MiB"], 69, "no_resources"),
    ],
)
def test_what_is_refused_before_the_load(refused, chain, monkeypatch, words, code, word):
    monkeypatch.setattr("octavo.server.fleet.AsyncLLM", None)
    refused(code, word, "serve", chain, "--port", 0, *words)


def test_a_bad_model_is_one_line(refused, copy):
    """The child process loads the model; what it finds comes out of this one."""
    (copy / "chat_template.jinja").write_text("{{ ''.__class__ }}")
    assert str(copy) in refused(65, "bad_chat_template", "serve", copy, "--port", 0, "--num-blocks", 64)
    (copy / "chat_template.jinja").unlink()
    config = json.loads((copy / "config.json").read_text()) | {"vocab_size": 300}
    (copy / "config.json").write_text(json.dumps(config))
    assert "vocab_size" in refused(78, "bad_config", "serve", copy, "--port", 0)
