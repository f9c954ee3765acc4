"""`octavo batch`: files of requests answered by the endpoints in process, going on after any stop."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.errors import BadFileError, EngineError, ResourceError, UsageError
from octavo.server.batch.files import Input, Output
from octavo.server.batch.run import Batch

ROOT = Path(__file__).resolve().parents[2]


def request(name, url="/v1/chat/completions", method="POST", **body):
    if url == "/v1/chat/completions":
        body = {"messages": [{"role": "user", "content": "hello"}]} | body
    return {"custom_id": name, "method": method, "url": url, "body": {"model": "default", **body}}


@pytest.fixture
def requests(tmp_path):
    """requests(line...) -> the file of them; a line is an object, or text as it stands."""

    def write(*lines):
        path = tmp_path / "in.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return write


def answers(path):
    """custom_id -> line."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


ENGINE = ("--threads", 1, "--num-blocks", 64)


def test_every_endpoint(octavo, chain, requests, tmp_path):
    given = requests(
        request("chat", temperature=0),
        request("plain", "/v1/completions", prompt="A", max_tokens=2),
        request("response", "/v1/responses", input="hello", temperature=0),
        request("anthropic", "/v1/messages", max_tokens=8, messages=[{"role": "user", "content": "hello"}]),
        request("refused", temperature=-1),
        request("embedding", "/v1/embeddings", input="A"),
        request("other", model="else"),
        request("method", method="GET"),
        request("url", "/v1/files"),
        request("stream", stream=True),
        "",
        {"custom_id": "body", "method": "POST", "url": "/v1/completions", "body": 3},
    )
    out = tmp_path / "out.jsonl"
    outcome = octavo("batch", given, out, "--model", chain, *ENGINE, "--json")
    assert outcome.code == 1, outcome.err
    summary = json.loads(outcome.out)
    assert summary["lines"] == 11 and summary["answered"] == 4 and summary["refused"] == 7 and summary["output_tokens"]
    found = answers(out)
    assert found["chat"]["response"]["body"]["choices"][0]["message"]["content"] == "hi"
    assert found["chat"]["id"].startswith("batch_req_") and found["chat"]["response"]["request_id"]
    assert found["response"]["response"]["body"]["output"][0]["content"][0]["text"] == "hi"
    assert found["anthropic"]["response"]["body"]["content"][0]["text"] == "hi"
    assert found["plain"]["response"]["status_code"] == 200 and found["plain"]["error"] is None
    assert found["refused"]["response"]["body"]["error"]["param"] == "temperature"
    assert {name: found[name]["response"]["status_code"] for name in ("refused", "embedding", "other")} == {
        "refused": 400,
        "embedding": 400,
        "other": 404,
    }
    for name in ("method", "url", "stream", "body"):
        assert found[name]["response"] is None and found[name]["error"]["message"], name


def test_a_batch_goes_on(octavo, chain, requests, tmp_path):
    out = tmp_path / "out.jsonl"
    lines = [request(str(number), temperature=0) for number in range(6)]
    assert octavo("batch", requests(*lines[:2]), out, "--model", chain, *ENGINE).code == 0
    before = out.read_bytes()
    failed = {"custom_id": "2", "response": {"status_code": 500, "body": {}}, "error": None}
    out.write_bytes(before + json.dumps(failed).encode() + b"\n" + before[:40])  # as a crash leaves it
    outcome = octavo("batch", requests(*lines), out, "--model", chain, *ENGINE)
    assert outcome.code == 0 and "2 of 6 lines are answered already, 2 asked again" in outcome.err
    assert out.read_bytes().startswith(before) and set(answers(out)) == set("012345")
    whole = out.read_bytes()
    outcome = octavo("batch", requests(*lines), out, "--model", chain, *ENGINE)
    assert outcome.code == 0 and "6 before" in outcome.err and out.read_bytes() == whole


def test_refused_before_a_model_is_loaded(refused, requests, tmp_path):
    out = tmp_path / "out.jsonl"

    def batch(code, word, given, out=out):
        return refused(code, word, "batch", given, out, "--model", "absent:model")

    batch(66, "file_missing", tmp_path / "absent")
    batch(65, "bad_batch", requests())
    for lines, says in (
        (["{"], "line 1"),
        ([request("a"), request("a")], "line 2: custom_id 'a' is that of line 1"),
        ([request("a"), request("")], "line 2: custom_id"),
        ([request("a"), {"method": "POST"}], "line 2"),
        (["[]"], "line 1"),
        ([request("a"), "\xff"], "line 2"),
    ):
        assert says in batch(65, "bad_batch", requests(*lines))
    given = requests(request("a"))
    assert "over the requests" in batch(2, "usage", given, given)
    batch(69, "cannot_write", given, tmp_path / "absent" / "out")
    out.write_text('{"custom_id": "other", "response": null}\n')
    assert "'other'" in batch(2, "usage", given)
    out.write_text("no answer\n")
    batch(65, "bad_batch", given)
    assert out.read_text() == "no answer\n"


def test_one_batch_at_a_time(requests, tmp_path):
    given = Input.read(requests(request("a")))
    with Output(tmp_path / "out.jsonl", given), pytest.raises(ResourceError, match="another batch"):
        Output(tmp_path / "out.jsonl", given)
    with Output(tmp_path / "out.jsonl", given) as output:
        assert not output.answered
    with pytest.raises(UsageError):
        Output(given.path, given)
    (tmp_path / "out.jsonl").write_bytes(b"x\n")
    with pytest.raises(BadFileError, match="line 1"):
        Output(tmp_path / "out.jsonl", given)


class Dying:
    """An engine that stops while the third line is answered."""

    error = None

    def __init__(self):
        self.asked = 0

    async def app(self, scope, receive, send):
        self.asked += 1
        await asyncio.sleep(0)
        if self.asked > 2:
            self.error = EngineError("gone")
        await send({"type": "http.response.start", "status": 500 if self.error else 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def test_the_end_of_the_engine_is_no_answer(requests, tmp_path):
    given = Input.read(requests(*(request(str(number)) for number in range(9))))
    dying = Dying()
    with Output(tmp_path / "out.jsonl", given) as output, pytest.raises(EngineError):
        asyncio.run(Batch(dying.app, dying, given, output, lambda *_: None).run(2))
    assert set(answers(tmp_path / "out.jsonl")) <= {"0", "1"} and dying.asked <= 4


def test_killed_at_any_moment_and_begun_again(chain, requests, tmp_path):
    given, out = requests(*(request(str(number), temperature=0) for number in range(400))), tmp_path / "out.jsonl"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OCTAVO_HOME": str(tmp_path)}
    words = ["batch", given, out, "--model", chain, *ENGINE, "--at-once", 2]
    command = [sys.executable, "-m", "octavo.cli.main", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as child:
        while not out.exists() or out.stat().st_size < 2000:
            assert child.poll() is None
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
    kept = out.read_bytes()
    assert 0 < kept.count(b"\n") < 400
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and "lines are answered already" in done.stderr, done.stderr
    assert out.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1]) and len(answers(out)) == 400
