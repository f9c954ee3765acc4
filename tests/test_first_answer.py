"""What `make run` promises: the fixed question on the real model, answered piece by piece."""

import os
import subprocess
import sys

import pytest

from octavo.errors import MissingFileError
from octavo.weights.fetch import resolve

QUESTION = "What is the capital of France?"


@pytest.fixture
def command():
    try:
        resolve("smollm2:135m")
    except MissingFileError as error:
        pytest.skip(f"needs the model: {error.message}")
    return [sys.executable, "-m", "octavo.cli.main", "run", "smollm2:135m"]


def test_the_first_answer(command):
    done = subprocess.run([*command, QUESTION], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    assert "Paris" in done.stdout
    assert "prompt tokens" in done.stderr


def test_the_answer_comes_in_pieces(command):
    """200 tokens are made to follow, so that the first piece is read while most of them are still to be computed."""
    words = [*command, QUESTION, "--ignore-eos", "--max-tokens", "200"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1 << 16)
        rest = process.stdout.read()
    assert process.returncode == 0
    assert 0 < len(first) < len(rest)
    assert b"Paris" in first + rest
