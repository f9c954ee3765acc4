"""`octavo launch`: what each program is told, against a list of models on a socket; the start, of a program that says
what it was given."""

import json
import os
import shlex
import stat
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
SHOW = """#!{python}
import json, os, sys
print(json.dumps({{"words": sys.argv[1:], "environment": dict(os.environ)}}))
sys.exit(7)
"""


@pytest.fixture
def server():
    """The address of a server of two models, of which the first has a context of 8192; it wants the key `k` if any."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            known = self.headers["authorization"] in ("Bearer k", "Bearer none") and self.path == "/v1/models"
            rows = [{"id": "a", "max_model_len": 8192}, {"id": "b", "max_model_len": None}]
            body = json.dumps({"data": rows} if known else {"error": {}}).encode()
            self.send_response(200 if known else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    listening = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


@pytest.fixture
def started(tmp_path, server):
    """started(program, words...) -> what the program was given; programs of that name exist."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()

    def start(program, *words, **more):
        script = bin_ / program
        script.write_text(SHOW.format(python=sys.executable))
        script.chmod(script.stat().st_mode | stat.S_IEXEC)
        environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCE), **more}
        command = [sys.executable, "-m", "octavo.cli.main", "launch", program, "--url", server, *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert done.returncode == 7, done.stderr
        return json.loads(done.stdout)

    return start


def test_claude(started, server):
    given = started("claude", "--", "-p", "hello", ANTHROPIC_API_KEY="elsewhere", OCTAVO_API_KEY="k")
    told = given["environment"]
    assert given["words"] == ["-p", "hello"] and "ANTHROPIC_API_KEY" not in told
    assert (told["ANTHROPIC_BASE_URL"], told["ANTHROPIC_AUTH_TOKEN"], told["ANTHROPIC_MODEL"]) == (server, "k", "a")
    assert told["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0" and told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "2048"


def test_codex(started, server):
    given = started("codex", "exec", "hello", OCTAVO_API_KEY="k")
    assert given["words"][-2:] == ["exec", "hello"] and given["environment"]["OCTAVO_API_KEY"] == "k"
    settings = dict(word.split("=", 1) for word in given["words"][1:-2:2])
    assert json.loads(settings["model_providers.octavo.base_url"]) == f"{server}/v1"
    assert json.loads(settings["model_providers.octavo.wire_api"]) == "responses"
    assert json.loads(settings["model"]) == "a" and settings["model_context_window"] == "8192"
    assert not any('"k"' in word for word in given["words"]), "arguments show in `ps`"


def test_opencode(started, server):
    given = started("opencode", "--model", "b")
    settings = json.loads(given["environment"]["OPENCODE_CONFIG_CONTENT"])
    assert settings["model"] == settings["small_model"] == "octavo/b" and given["words"] == []
    provider = settings["provider"]["octavo"]
    assert provider["options"]["baseURL"] == f"{server}/v1" and "limit" not in provider["models"]["b"]
    assert given["environment"]["OCTAVO_API_KEY"] == "none"


def test_qwen(started, server):
    told = started("qwen", "--url", f"{server}/v1/")["environment"]
    assert (told["OPENAI_BASE_URL"], told["OPENAI_MODEL"]) == (f"{server}/v1", "a")


@pytest.mark.parametrize("program", ["codex", "claude", "opencode", "qwen"])
def test_what_is_printed_does_the_same_in_a_shell(octavo, started, server, monkeypatch, program, tmp_path):
    monkeypatch.setenv("OCTAVO_API_KEY", "k")
    printed = octavo("launch", program, "--url", server, "--print", "--", "-p", "it's")
    assert printed.code == 0 and " k" not in printed.out and "=k" not in printed.out and '"k"' not in printed.out
    direct = started(program, "--", "-p", "it's", OCTAVO_API_KEY="k", ANTHROPIC_API_KEY="elsewhere")
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCE)}
    environment |= {"OCTAVO_API_KEY": "k", "ANTHROPIC_API_KEY": "elsewhere"}
    shell = subprocess.run(["sh", "-c", printed.out], capture_output=True, text=True, env=environment, check=False)
    in_shell = json.loads(shell.stdout)
    assert in_shell["words"] == direct["words"]
    own = {"_", "PWD", "OLDPWD", "SHLVL", "LC_CTYPE"}
    assert {k: v for k, v in in_shell["environment"].items() if k not in own} == {
        k: v for k, v in direct["environment"].items() if k not in own
    }


def test_a_model_that_is_named_needs_no_server_to_be_printed(octavo):
    printed = octavo("launch", "qwen", "--url", "127.0.0.1:9", "--model", "m", "--print")
    assert printed.code == 0 and printed.out.splitlines()[-1] == shlex.join(["qwen", "--auth-type", "openai"])


def test_a_program_that_is_not_installed(refused, server, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "npm install -g @openai/codex" in refused(66, "program_missing", "launch", "codex", "--url", server)


def test_what_is_refused(refused, server, monkeypatch):
    assert "served: a, b" in refused(2, "usage", "launch", "claude", "--url", server, "--model", "c")
    assert "octavo serve" in refused(69, "server_unreachable", "launch", "claude", "--url", "http://127.0.0.1:9")
    refused(2, "usage", "launch", "emacs")
    refused(2, "usage", "launch", "claude", "--url", "ftp://host")
    monkeypatch.setenv("OCTAVO_API_KEY", "wrong")
    assert "set OCTAVO_API_KEY" in refused(69, "server_refused", "launch", "claude", "--url", server)
