"""A tiny model, a text, and `octavo train head` over both."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_model import write_model

from octavo.cli.main import main
from octavo.train.order import QUESTIONS, STDLIB

TEXT = "the man in an inn then and the hen ran there, as a better answer than a rather thin theme. " * 60
NAMED = (STDLIB, QUESTIONS)  # data that is no file
SIZES = ("--tokens", 2400, "--window", 96, "--draft-vocab", 64, "--epochs", 3, "--threads", 1, "--float32")


def _place(home, data):
    return data if data in NAMED else home / data


@dataclass(frozen=True)
class Trained:
    code: int
    out: str
    err: str
    folder: Path

    @property
    def report(self):
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A folder with `model` and `text.txt`."""
    place = tmp_path_factory.mktemp("train")
    write_model(place / "model")
    (place / "text.txt").write_text(TEXT)
    return place


@pytest.fixture
def train(home, capsys):
    """train(kind, out, words...) -> Trained. Hidden states are shared: one folder for each choice of text."""

    def call(kind, out, *words, data="text.txt", sizes=SIZES):
        given = ("--kind", kind, "--model", home / "model", "--data", _place(home, data), "--out", out, *sizes, *words)
        code = main([str(word) for word in ("train", "head", *given, "--json")])
        said = capsys.readouterr()
        return Trained(code, said.out, said.err, out)

    return call
