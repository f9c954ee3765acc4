"""Commands run in this process: exit code, stdout and stderr; a tiny model to run them on."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from chain_model import write_chain
from tiny_model import write_model

from octavo.cli import flags
from octavo.cli.main import main


@dataclass
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    """No OCTAVO_ variable, no model of this machine's user."""
    for flag in flags.ALL_FLAGS:
        monkeypatch.delenv(flag.env, raising=False)
    for name in ("OCTAVO_CONFIG", "OCTAVO_API_KEY", "OCTAVO_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def octavo(capsys):
    """octavo(words...) -> Outcome."""

    def call(*words):
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as leaving:  # --help and --version
            code = leaving.code
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def refused(octavo):
    """refused(code, word, words...) -> the one line on stderr, when the command ended with that code and word."""

    def call(code, word, *words):
        outcome = octavo(*words)
        assert outcome.code == code, outcome.err
        assert outcome.out == ""
        assert outcome.err.count("\n") == 1 and outcome.err.startswith(f"error: {word}: "), outcome.err
        assert len(outcome.err) < 900
        return outcome.err

    return call


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def copy(model, tmp_path) -> Path:
    """The tiny model in a folder that the test may spoil."""
    return Path(shutil.copytree(model, tmp_path / "model"))


@pytest.fixture(scope="session")
def chain(tmp_path_factory):
    """A model that answers every chat with "hi"."""
    return write_chain(tmp_path_factory.mktemp("chain"))
