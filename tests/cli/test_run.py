"""`octavo run` with one prompt: where it comes from, what is printed where, how the run ends."""

import io
import re
import sys

import pytest

from octavo.cli import run as command
from octavo.engine.llm import AsyncLLM
from octavo.runner.runner import Runner

SPEED = r"\[\d+ prompt tokens \(\d+ cached\), first token after \d+\.\d\d s; \d+ tokens( at \d+ tok/s)?\]"


@pytest.fixture
def stdin(monkeypatch):
    """stdin(bytes): a pipe that holds them."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_an_answer_on_stdout_the_rest_on_stderr(octavo, chain):
    outcome = octavo("run", chain, "say", "something", "--threads", 1, "--speculate", "off")
    assert (outcome.code, outcome.out) == (0, "hi\n")
    assert re.fullmatch(rf"note: F32 matrices [^\n]*\n{SPEED}\n", outcome.err)


def test_words_may_stand_between_flags(octavo, chain):
    one = octavo("run", "--threads", 1, chain, "a", "--max-tokens", 1, "b")
    assert (one.code, one.out) == (0, "h\n")
    assert octavo("run", chain, "--raw", "--", "--not-a-flag AB").out == "CDEFGHIJKLMNOPQRSTUVWXYZ\n"


def test_an_answer_that_breaks_off_is_an_error(octavo, chain, monkeypatch):
    def fail(self):
        raise RuntimeError("the machine broke")

    monkeypatch.setattr(Runner, "finish", fail)
    outcome = octavo("run", chain, "x", "--threads", 1)
    assert outcome.code == 70 and outcome.err.endswith("error: internal_error: the machine broke\n")


def test_a_prompt_from_stdin(octavo, chain, stdin):
    stdin("a question, ď\n".encode())
    assert octavo("run", chain).out == "hi\n"


def test_raw_continues_the_prompt(octavo, chain, stdin):
    assert octavo("run", chain, "--raw", "AB", "--max-tokens", 3).out == "CDE\n"
    stdin(b"AB")
    assert octavo("run", chain, "--raw", "--max-tokens", 3).out == "CDE\n"


def test_stop_strings_add_up(octavo, chain):
    words = ("run", chain, "--raw", "AB")
    assert octavo(*words, "--stop", "Q", "--stop", "GH").out == "CDEF\n"
    assert octavo(*words, "--stop", "GH", "--stop", "Q").out == "CDEF\n"


@pytest.mark.parametrize(
    ("flags", "tokens"), [([], 2), (["--ignore-eos"], 5), (["--ignore-eos=true"], 5), (["--ignore-eos=no"], 2),
                          (["--no-ignore-eos"], 2), (["--ignore-eos", "--no-ignore-eos"], 2)],
)  # fmt: skip
def test_switches(octavo, chain, flags, tokens):
    outcome = octavo("run", chain, "x", *flags, "--max-tokens", 5)
    assert f"; {max(tokens, 3 if tokens == 2 else 5)} tokens" in outcome.err  # "h", "i" and the end of text


def test_verbose_shows_what_fits(octavo, chain):
    outcome = octavo("run", chain, "x", "--verbose", "--num-blocks", 64)
    assert outcome.out == "hi\n" and "tokens that fit" in outcome.err and "numerics" in outcome.err


@pytest.mark.parametrize("data", [b"", b" \n"])
def test_no_prompt_is_said_before_the_load(refused, chain, stdin, monkeypatch, data):
    monkeypatch.setattr(command, "AsyncLLM", None)
    stdin(data)
    assert "no prompt" in refused(2, "usage", "run", chain)


@pytest.mark.parametrize("flags", [(), ("--raw",)])
def test_an_empty_prompt_opens_no_chat(refused, chain, flags):
    assert "the prompt is empty" in refused(2, "usage", "run", chain, "", *flags)


def test_stdin_that_is_no_text(refused, chain, stdin):
    stdin(b"caf\xe9")
    assert "stdin: not UTF-8 (offset 3)" in refused(65, "bad_text", "run", chain)


def test_an_argument_that_is_no_text(octavo, chain):
    outcome = octavo("run", chain, "\udce9")
    assert outcome.code == 2 and "not valid Unicode" in outcome.err.splitlines()[-1]


def test_system_messages_belong_to_templates(refused, octavo, chain):
    refused(2, "usage", "run", chain, "--raw", "--system", "x", "y")
    longer = octavo("run", chain, "y", "--system", "be brief").err
    assert prompt_tokens(longer) > prompt_tokens(octavo("run", chain, "y").err)


def prompt_tokens(err):
    return int(re.search(r"\[(\d+) prompt tokens", err)[1])


def test_a_question_where_the_model_should_stand(refused):
    line = refused(66, "file_missing", "run", "What is the capital of France, " * 20)
    assert "no such file or folder, and no such model" in line and "octavo pull" in line


def test_a_prompt_that_is_too_long(octavo, chain):
    outcome = octavo("run", chain, "x" * 300)
    assert outcome.code == 2 and outcome.out == ""
    last = outcome.err.splitlines()[-1]
    assert last.startswith("error: context_length_exceeded: ") and "256" in last


@pytest.mark.parametrize("flags", [[], ["--raw"]])
def test_ctrl_c_ends_with_130(octavo, chain, monkeypatch, flags):
    closed = []
    monkeypatch.setattr(AsyncLLM, "close", lambda self, close=AsyncLLM.close: (closed.append(1), close(self)))

    async def interrupted(self, prompt, params):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(AsyncLLM, "stream", interrupted)
    assert octavo("run", chain, "x", *flags).code == 130
    assert closed == [1]
