"""`octavo run` as a chat on a terminal: a real one, with its line discipline, so that Ctrl-C is a signal."""

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chain_model import write_chain

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A process on a pseudo-terminal; `until` reads what it prints."""

    def __init__(self, *words, home):
        self.master, slave = os.openpty()
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "TERM": "dumb", "OCTAVO_HOME": str(home)}
        command = [sys.executable, "-m", "octavo.cli.main", *map(str, words)]
        self.process = subprocess.Popen(command, env=environment, preexec_fn=lambda: os.login_tty(slave))
        os.close(slave)
        self.text = ""

    def until(self, pattern, seconds=SECONDS):
        """What came up to the end of the first match; it is taken away."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            ready, _, _ = select.select([self.master], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"never said {pattern!r}: {self.text[-500:]!r}")
            try:
                self.text += os.read(self.master, 1 << 16).decode(errors="replace")
            except OSError:  # the other end is closed
                raise AssertionError(f"ended before it said {pattern!r}: {self.text[-500:]!r}") from None
        taken, self.text = self.text[: found.end()], self.text[found.end() :]
        return taken

    def type(self, keys):
        os.write(self.master, keys)

    def ask(self, text):
        """One question at the prompt; the prompt's tokens of its answer."""
        self.type(text.encode() + b"\n")
        said = self.until(r"\[(\d+) prompt tokens[^\]]*\]")
        self.until("> ")
        return said, int(re.search(r"\[(\d+) prompt tokens", said)[1])

    def interrupt_prompt(self):
        """Ctrl-C until a new prompt comes: one that falls just before the prompt's wait is seen at the next."""
        for _ in range(int(SECONDS)):
            self.type(CTRL_C)
            try:
                return self.until("\n> ", 1.0)
            except TimeoutError:
                continue
        raise TimeoutError("no prompt after Ctrl-C")

    def end(self):
        """The exit code, once everything was read."""
        while True:
            try:
                if not os.read(self.master, 1 << 16):
                    break
            except OSError:
                break
        return self.process.wait(SECONDS)


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def run(*words):
        opened.append(Terminal("run", *words, "--threads", 1, "--num-blocks", 4096, home=tmp_path))
        return opened[-1]

    yield run
    for one in opened:
        one.process.kill()
        one.process.wait()
        os.close(one.master)


def test_a_chat(terminal, chain):
    """History grows and is forgotten by /reset; what does not fit is said and the chat goes on; Ctrl-D leaves."""
    chat = terminal(chain)
    assert "Ctrl-D leaves" in chat.until("> ")
    said, first = chat.ask("hello")
    assert "hi\r\n" in said
    _, second = chat.ask("hello")
    assert second > first
    chat.type(b"/what\n")
    assert "/reset forgets" in chat.until("> ")
    chat.type(b"/reset\n")
    assert "conversation forgotten" in chat.until("> ")
    _, third = chat.ask("hello")
    assert third == first
    chat.type(b"x" * 300 + b"\n")
    assert "error: context_length_exceeded: " in chat.until("\n> ")
    _, fourth = chat.ask("hello")
    assert fourth == second
    chat.type(b"half a line")
    chat.until("half a line")  # read: what is still queued would be dropped by Ctrl-C under readline's hands
    chat.interrupt_prompt()
    chat.type(CTRL_D)
    assert chat.end() == 0


def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(terminal, tmp_path):
    chat = terminal(write_chain(tmp_path / "long", longest=60_000), "--ignore-eos")
    chat.until("> ")
    for _ in range(2):
        chat.type(b"hello\n")
        chat.until("hi")
        chat.type(CTRL_C)
        assert "prompt tokens" not in chat.until(r"\[stopped\]")
        chat.until("> ")
    chat.type(b"/exit\n")
    assert chat.end() == 0


def test_ctrl_c_stops_a_single_answer(terminal, tmp_path):
    once = terminal(write_chain(tmp_path / "long", longest=60_000), "--ignore-eos", "hello")
    once.until("hi")
    once.type(CTRL_C)
    once.until(r"\[stopped\]")
    assert once.end() == 130
