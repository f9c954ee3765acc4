"""On a socket: the official client, clients that leave, clients that do not read, and the life of the process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest
from scripted import ANSWER

from octavo.errors import ConfigError, MissingFileError, ResourceError
from octavo.server.config import ServerConfig
from octavo.server.serving import bind

MESSAGES = [{"role": "user", "content": "Hi"}]


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.005)


@pytest.fixture
def official(live):
    with openai.OpenAI(base_url=live, api_key="none", max_retries=0) as client:
        yield client


def test_official_chat(official):
    answer = official.chat.completions.create(model="toy/model", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2)
    assert [choice.message.content for choice in answer.choices] == [ANSWER, ANSWER]
    assert answer.choices[0].finish_reason == "stop"
    entry = answer.choices[0].logprobs.content[0]
    assert bytes(entry.bytes).decode() == entry.token and len(entry.top_logprobs) == 2
    assert answer.usage.prompt_tokens_details.cached_tokens == 1 and answer.system_fingerprint
    assert [model.id for model in official.models.list()] == ["toy/model"]
    assert official.models.retrieve("default").id == "toy/model"


def test_official_stream(official):
    stream = official.chat.completions.create(
        model="toy/model", messages=MESSAGES, stream=True, n=2, stream_options={"include_usage": True}, stop="fox"
    )
    text = {0: "", 1: ""}
    reasons, usage = [], None
    for chunk in stream:
        for choice in chunk.choices:
            text[choice.index] += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
        usage = chunk.usage or usage
    assert text == {0: "The quick brown ", 1: "The quick brown "} and reasons == ["stop", "stop"]
    assert usage.completion_tokens > 0


def test_official_completions(official):
    answer = official.completions.create(model="toy/model", prompt=["Hi", "The"], echo=True, logprobs=1, max_tokens=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[1].text.startswith("The") and answer.choices[1].finish_reason == "length"
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    text = "".join(
        chunk.choices[0].text for chunk in official.completions.create(model="default", prompt="Hi", stream=True)
    )
    assert text == ANSWER


def test_official_errors(official, llm):
    with pytest.raises(openai.BadRequestError) as refused:
        official.chat.completions.create(model="toy/model", messages=MESSAGES, temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as refused:
        official.chat.completions.create(model="toy/model", messages=MESSAGES, stream=True, n=99)
    assert refused.value.param == "n"
    with pytest.raises(openai.NotFoundError):
        official.chat.completions.create(model="other", messages=MESSAGES)
    llm.failure = "broken"
    with pytest.raises(openai.APIError, match="broken"):
        list(official.chat.completions.create(model="toy/model", messages=MESSAGES, stream=True))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [1, 3])
def test_a_client_that_leaves_frees_its_streams(live, llm, stream, prompts):
    llm.hold = True
    body = json.dumps({"model": "default", "prompt": ["Hi"] * prompts, "stream": stream, "n": 2}).encode()
    with _connect(live) as connection:
        connection.sendall(_post("/v1/completions", body))
        until(lambda: llm.opened == prompts)
        if stream:
            assert b"200 OK" in connection.recv(4096)
        assert llm.closed == 0
    until(lambda: llm.closed == prompts)


def test_a_stopped_reader_of_the_official_client_frees_its_stream(official, llm):
    llm.pause = 0.01
    with official.chat.completions.create(model="toy/model", messages=MESSAGES, stream=True) as stream:
        next(iter(stream))
    until(lambda: llm.closed == llm.opened == 1)


def test_many_clients_that_leave_at_any_moment(live, llm):
    llm.pause = 0.002
    body = json.dumps({"model": "default", "messages": MESSAGES, "stream": True}).encode()
    for moment in range(20):
        before = llm.opened
        with _connect(live) as connection:
            if moment % 4 == 0:  # in the middle of the request
                connection.sendall(_post("/v1/chat/completions", body)[:150])
                continue
            connection.sendall(_post("/v1/chat/completions", body))
            if moment % 4 == 1:  # while it is being read
                time.sleep(moment * 0.002)
                continue
            until(lambda before=before: llm.opened > before)
            if moment % 4 == 3:  # while the answer is being sent
                connection.recv(64 * moment)
    until(lambda: llm.closed == llm.opened)
    assert llm.opened >= 10


class TestImpatient:
    @pytest.fixture
    def config(self):
        return ServerConfig(port=0, ping_seconds=0.02, send_seconds=0.3, body_seconds=0.2)

    def test_a_silent_stream_is_kept_alive(self, live, llm):
        llm.hold = True
        body = json.dumps({"model": "default", "prompt": "Hi", "stream": True}).encode()
        with _connect(live) as connection:
            connection.sendall(_post("/v1/completions", body))
            received = b""
            while received.count(b": ping\n\n") < 2:
                received += connection.recv(4096)

    def test_a_client_that_does_not_read_is_cut(self, live, llm):
        llm.answer = "x" * 200
        fields = {"model": "default", "prompt": "Hi", "stream": True, "logprobs": 20, "n": 8}
        with _connect(live, receive_buffer=4096) as connection:
            connection.sendall(_post("/v1/completions", json.dumps(fields).encode()))
            until(lambda: llm.opened == 1)
            until(lambda: llm.closed == 1)

    def test_a_body_that_does_not_arrive(self, live):
        with _connect(live) as connection:
            connection.sendall(_post("/v1/completions", b" " * 100)[:-50])
            assert b"408" in connection.recv(4096)


def test_two_lengths_are_refused(live):
    with _connect(live) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(
            f"{head}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n".encode()
        )
        assert b" 400 " in connection.recv(4096)


def _connect(live, receive_buffer=None):
    host, port = live.removeprefix("http://").removesuffix("/v1").split(":")
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(10)
    connection.connect((host, int(port)))
    return connection


def _post(path, body):
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


PROCESS = """
import sys, threading
sys.path[:0] = sys.argv[1:3]
from octavo.errors import EngineError
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.serving import bind, run
from octavo.server.state import ServerState
from octavo.text.tokenizer import Tokenizer
from pathlib import Path
from scripted import ScriptedLLM

config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}"}
llm = ScriptedLLM(Tokenizer.from_files(Path(sys.argv[3]), config, {"eos_token_id": 2}))
llm.pause = float(sys.argv[4])
llm.hold = sys.argv[5] == "hold"
if sys.argv[5] == "die":
    def die():
        llm.error = EngineError("the engine is gone")
        llm.failure = "the engine is gone"
    threading.Timer(0.3, die).start()
state, config = ServerState(), ServerConfig(port=0, drain_seconds=float(sys.argv[6]))
with bind(config) as listener:
    try:
        code = run(create_app(llm, config, state), llm, config, state, listener, lambda line: print(line, flush=True))
    except EngineError as error:
        print(error.line(), flush=True)
        code = error.exit_code
print("ended", llm.opened, llm.closed, flush=True)
sys.exit(code)
"""


@pytest.fixture
def process(tmp_path, tokenizer):
    """process(pause, mode, drain seconds) -> (Popen, address)."""
    started = []
    path = tmp_path / "tokenizer.json"
    tokenizer._core.save(str(path))
    here = Path(__file__).resolve()
    source = here.parents[2] / "src"

    def start(pause, mode="plain", drain=30):
        command = [
            sys.executable,
            "-c",
            PROCESS,
            str(here.parent),
            str(source),
            str(path),
            str(pause),
            mode,
            str(drain),
        ]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(child)
        line = child.stdout.readline().strip()
        assert line.startswith("listening on http://127.0.0.1:") and line.endswith("/v1")
        assert int(line.rpartition(":")[2].removesuffix("/v1")) > 0
        return child, line.removeprefix("listening on ")

    yield start
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


def _begin_stream(live):
    connection = _connect(live)
    connection.sendall(
        _post("/v1/completions", json.dumps({"model": "default", "prompt": "Hi", "stream": True}).encode())
    )
    received = b""
    while b"data: " not in received:
        received += connection.recv(4096)
    return connection, received


def _rest(connection, received=b""):
    while data := connection.recv(4096):
        received += data
    connection.close()
    return received


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(process, number):
    child, live = process(0.02)
    connection, received = _begin_stream(live)
    os.kill(child.pid, number)
    assert b"data: [DONE]" in _rest(connection, received)
    assert child.wait(10) == 0 and child.stdout.read() == "ended 1 1\n"


def test_a_second_signal_is_immediate(process):
    child, live = process(0.0, "hold")
    connection, received = _begin_stream(live)
    os.kill(child.pid, signal.SIGTERM)
    time.sleep(0.2)
    assert child.poll() is None
    os.kill(child.pid, signal.SIGTERM)
    assert b"shutting_down" in _rest(connection, received)
    assert child.wait(10) == 0 and child.stdout.read() == "ended 1 1\n"


def test_the_drain_has_an_end(process):
    child, live = process(0.0, "hold", 1)
    connection, received = _begin_stream(live)
    os.kill(child.pid, signal.SIGTERM)
    assert b"shutting_down" in _rest(connection, received)
    assert child.wait(10) == 0


def test_the_end_of_the_engine_ends_the_server_with_its_error(process):
    child, live = process(0.05, "die")
    connection, received = _begin_stream(live)
    assert b"the engine is gone" in _rest(connection, received)
    assert child.wait(10) == 70 and "internal_error: the engine is gone" in child.stdout.read()


def test_addresses_and_keys(tmp_path):
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ConfigError) as refused:
            ServerConfig.of(host=host, environ={})
        assert refused.value.exit_code == 78 and refused.value.code == "key_required"
        assert ServerConfig.of(host=host, environ={}, insecure_no_auth=True).keys == ()
        assert len(ServerConfig.of(host=host, environ={"OCTAVO_API_KEY": "k"}).keys) == 1
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert ServerConfig.of(host=host, environ={"OCTAVO_API_KEY": " "}).keys == ()
    with pytest.raises(MissingFileError, match="absent"):
        ServerConfig.of(api_key_file=str(tmp_path / "absent"), environ={})
    (tmp_path / "empty").write_text("# none\n\n")
    with pytest.raises(ConfigError, match="no key"):
        ServerConfig.of(api_key_file=str(tmp_path / "empty"), environ={})
    (tmp_path / "latin").write_bytes(b"kl\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        ServerConfig.of(api_key_file=str(tmp_path / "latin"), environ={})
    with pytest.raises(ConfigError, match="port"):
        ServerConfig.of(port=70000, environ={})
    assert "secret" not in repr(ServerConfig.of(environ={"OCTAVO_API_KEY": "secret"}))


def test_a_port_that_is_taken(config):
    with bind(config) as listener:
        listener.listen()
        taken = ServerConfig(port=listener.getsockname()[1])
        with pytest.raises(ResourceError) as refused:
            bind(taken)
        assert refused.value.code == "cannot_bind" and str(taken.port) in refused.value.message
