"""--packed-cache: the second load maps what the first one packed; a file that is not exactly it is never used."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from engines import ids
from gguf_model import write_gguf_model
from tiny_model import write_model

from octavo import LLM, SamplingParams

native = pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")
packed = pytest.importorskip("octavo.backends.native.packed")
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=3)
PROMPTS = ["abc", "the end of it"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "packed"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    return write_gguf_model(write_model(folder / "tiny"), folder / "tiny.gguf")


def answer(path, **options):
    """Ids and log-probabilities to the bit, and what loading said."""
    with LLM(path, threads=2, num_blocks=64, max_model_len=256, **{"packed_cache": "on", **options}) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        chosen = [[entry.logprob for place in out.outputs[0].logprobs for entry in place.values()] for out in outputs]
        said = [note for note in llm.info.notes if "packed" in note]
    return (ids(outputs), chosen), said


def one(home) -> Path:
    [file] = home.iterdir()
    return file


def test_the_second_load_maps_the_same_bits(path, home, monkeypatch):
    plain, said = answer(path, packed_cache="off")
    assert said == [] and not home.exists()
    assert answer(path) == (plain, [])
    written = one(home).stat()
    monkeypatch.setattr(native, "_stream", None)  # packing would fail
    assert answer(path) == (plain, [])
    assert answer(path, isa="portable")[1] == []
    assert one(home).stat().st_mtime_ns == written.st_mtime_ns


def spoil(file: Path, at: int, byte: int | None = None) -> None:
    content = bytearray(file.read_bytes())
    content[at] = content[at] ^ 1 if byte is None else byte
    file.write_bytes(content)


SPOILED = {
    "empty": (lambda file: file.write_bytes(b""), "cut short"),
    "cut head": (lambda file: os.truncate(file, 20), "cut short"),
    "cut data": (lambda file: os.truncate(file, file.stat().st_size - 64), "cut short"),
    "longer": (lambda file: file.write_bytes(file.read_bytes() + bytes(64)), "cut short"),
    "other file": (lambda file: spoil(file, 0), "another version"),
    "other version": (lambda file: spoil(file, 8, packed.VERSION + 1), "another version"),
    "flipped key": (lambda file: spoil(file, 24), "header is damaged"),
    "flipped table": (lambda file: spoil(file, packed.HEAD.size + 10), "header is damaged"),
    "flipped first byte": (lambda file: spoil(file, data_start(file)), "data is damaged"),
    "flipped last byte": (lambda file: spoil(file, file.stat().st_size - 1), "data is damaged"),
}


def data_start(file: Path) -> int:
    head = packed.HEAD.unpack(file.read_bytes()[: packed.HEAD.size])
    return -(-(packed.HEAD.size + head[2]) // 4096) * 4096


@pytest.mark.parametrize("how", SPOILED)
def test_a_spoiled_file_is_refused_said_once_and_written_again(path, home, how):
    want, _ = answer(path)
    good = one(home).read_bytes()
    SPOILED[how][0](one(home))
    got, said = answer(path)
    assert got == want and len(said) == 1 and SPOILED[how][1] in said[0], said
    assert one(home).read_bytes() == good
    assert answer(path) == (want, [])


def test_the_file_of_another_model_is_refused(path, home, tmp_path):
    """Under the right name, and whole: its key says whose it is."""
    want, _ = answer(path)
    mine = one(home)
    other = write_gguf_model(write_model(tmp_path / "other", seed=1), tmp_path / "other.gguf")
    assert answer(other)[0] != want
    [theirs] = set(home.iterdir()) - {mine}
    shutil.copy(theirs, mine)
    got, said = answer(path)
    assert got == want and "another model" in said[0]


def test_a_changed_packing_has_a_file_of_its_own(path, home, monkeypatch):
    want, _ = answer(path)
    monkeypatch.setattr(packed, "layout", lambda isa: b"other")
    assert answer(path) == (want, [])
    assert len(list(home.iterdir())) == 2


def test_a_disk_that_refuses_is_a_note(path, home, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packed.os, "fsync", full)
    want, said = answer(path)
    assert len(said) == 1 and "No space left" in said[0]
    assert list(home.iterdir()) == []
    assert want == answer(path, packed_cache="off")[0]


def test_the_reference_has_no_packed_weights(path, home):
    pytest.importorskip("torch")
    _, said = answer(path, executor="reference")
    assert len(said) == 1 and "native" in said[0]
    assert not home.exists()
