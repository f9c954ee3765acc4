"""`octavo ps`, `top --once`, `explain --request` against a running server, and the arithmetic behind them."""

import json
from io import StringIO

import httpx2
import pytest
from rich.console import Console

from octavo.cli.main import main
from octavo.cli.readings import Reading, percentile, rate
from octavo.cli.times import seconds
from octavo.cli.top import View, bar, sparks
from octavo.server.config import ServerConfig
from octavo.server.keys import Key


@pytest.fixture
def told(capsys, live, monkeypatch):
    """told(words...) -> (exit code, stdout, stderr) of a command that knows the server by OCTAVO_URL."""
    monkeypatch.setenv("OCTAVO_URL", live)

    def run(*words):
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def ask(live, **headers):
    body = {"model": "default", "prompt": "Hi", "max_tokens": 4, "seed": 3}
    return httpx2.post(f"{live}/completions", json=body, headers=headers).headers["x-request-id"]


def test_explain_says_where_the_time_went(live, told, llm):
    llm.drafts = 2, 1
    name = ask(live)
    code, out, _ = told("explain", "--request", name, "--json")
    assert code == 0 and name in out and "prompt: not kept" in out
    for word in ("before the engine", "queue", "prefill", "decode", "longest gap", "preemptions", "ended by"):
        assert word in out
    assert "4 of 8 accepted, 2.00 tokens a step that had any" in out
    assert json.loads(out.splitlines()[-1])["output_tokens"] == 4


def test_ps_and_top_list_what_is_known(live, told, llm):
    name = ask(live)
    assert name not in told("ps")[1]
    code, out, _ = told("ps", "--all", "--json")
    assert code == 0 and name in out and json.loads(out.splitlines()[-1])["models"] == {"toy/model": "ready"}
    code, out, _ = told("top", "--once", "--interval", "0.1")
    assert code == 0 and "toy/model" in out and name in out and "0 running" in out and "0 waiting" in out


REQUEST = {
    "id": "a1b2c3d4e5f60718",
    "model": "toy/model-with-a-long-name",
    "state": "decode",
    "prompt_tokens": 12345,
    "cached_tokens": 1024,
    "computed_tokens": 12345,
    "output_tokens": 1234,
    "tokens_per_second": 123.4,
    "first_token_seconds": 0.123,
    "finish_reason": None,
    "seconds": 12.3,
}
SCRAPED = """octavo_model_info{model="toy/model-with-a-long-name",version="1"} 1
octavo_requests_running 12
octavo_requests_waiting 3
octavo_output_tokens_total 5
octavo_drafts_total 8
octavo_drafts_accepted_total 6
octavo_draft_steps_total 4
"""


@pytest.mark.parametrize(("width", "model_shown"), [(120, True), (80, False)])
def test_top_fits_its_terminal(width, model_shown):
    """Nothing is cut: figures stand one above the other and columns are left out instead."""

    class Known:
        url = "http://127.0.0.1:8737"

        def text(self, path):
            return SCRAPED

        def json(self, path):
            return {"data": [REQUEST]}

    view, screen = View(Known()), Console(width=width, file=StringIO(), force_terminal=False)
    view.read()
    view.read()
    screen.print(view.frame(screen))
    out = screen.file.getvalue()
    assert "…" not in out and max(map(len, out.splitlines())) <= width
    for word in (
        "tokens/s",
        "75% accepted",
        "2.50",
        "between tokens",
        "12 running",
        "3 waiting",
        "a1b2c3d4e5f60718",
        "first token",
    ):
        assert word in out
    assert (REQUEST["model"] in out.partition("request ")[2]) == model_shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("explain", "--request", "nothing"), "no request 'nothing' of this key is known"),
        (("explain", "--request", "x", "--plain"), "--request goes without plain"),
        (("explain", "--request", "x", "a-model"), "--request goes without model: --url names the server"),
        (("explain",), "octavo explain MODEL, or octavo explain --request ID"),
        (("ps", "http://127.0.0.1:1"), "no server answers at http://127.0.0.1:1 (Connection refused)"),
        (("ps", "nowhere"), "nowhere: a server's address is like http://127.0.0.1:8737"),
        (("top", "--interval", "0"), "--interval is 0.1 to 3600 seconds"),
    ],
)
def test_mistakes_are_one_line(told, words, said):
    code, out, err = told(*words)
    assert code and not out and err.startswith("error: ") and said in err and err.count("\n") == 1


class TestWithAKey:
    @pytest.fixture
    def config(self):
        return ServerConfig(port=0, keys=(Key.of("secret"),))

    def test_the_key_comes_from_the_environment(self, live, told, monkeypatch):
        name = ask(live, authorization="Bearer secret")
        code, _, err = told("ps")
        assert code and "put it into OCTAVO_API_KEY" in err
        monkeypatch.setenv("OCTAVO_API_KEY", "secret")
        assert name in told("ps", "--all")[1]


METRICS = """# TYPE octavo_steps_total counter
octavo_steps_total{{model="a"}} {steps}
octavo_steps_total{{model="b \\"x\\""}} 2.0
octavo_model_info{{isa="avx2",model="a"}} 1.0
octavo_step_seconds_bucket{{le="1.0",model="a"}} {low}
octavo_step_seconds_bucket{{le="2.0",model="a"}} {both}
octavo_step_seconds_bucket{{le="+Inf",model="a"}} {all}
process_open_fds 9.0
"""


def test_two_readings_make_rates_and_percentiles():
    before = Reading.of(METRICS.format(steps=10.0, low=4.0, both=4.0, all=4.0), 100.0)
    after = Reading.of(METRICS.format(steps=30.0, low=5.0, both=8.0, all=8.0), 110.0)
    assert before.value("octavo_steps_total") == 12 and after.models == ("a",)
    assert rate(before, after, "octavo_steps_total") == 2.0
    assert percentile(before, after, "octavo_step_seconds", 0.25) == 1.0
    assert percentile(before, after, "octavo_step_seconds", 0.625) == 1.5
    assert percentile(None, after, "octavo_step_seconds", 0.3125) == 0.5
    assert percentile(after, after, "octavo_step_seconds", 0.5) is None
    late = Reading.of(METRICS.format(steps=30.0, low=5.0, both=8.0, all=99.0), 120.0)
    assert percentile(after, late, "octavo_step_seconds", 0.5) == 2.0


def test_drawing():
    assert sparks([0, 1, 8]) == "▁▂█" and sparks([0.0, 0.0]) == "▁▁" and sparks([]) == ""
    assert bar(0.5, 0.25, 8) == "████▒▒░░" and bar(2.0, 1.0, 4) == "████"
    assert [seconds(value) for value in (None, 0.0013, 0.13, 1.3, 45.0, 150.0)] == [
        *("", "1.3 ms", "130 ms", "1.30 s", "45.0 s", "2.5 min")
    ]
