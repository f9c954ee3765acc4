"""Safetensors: equal to the safetensors package; the index is obeyed (T31); every bad header has its code."""

from __future__ import annotations

import json
import os
import random
import struct
import sys

import numpy as np
import pytest
from bad.safetensors import BAD, W, entry, file
from safetensors.numpy import save_file

import octavo.weights.safetensors as reader_module
from octavo.errors import BadFileError, ConfigError, MissingFileError, OctavoError, PolicyError
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.kinds import dequantize
from octavo.weights.safetensors import MAX_HEADER, parse_safetensors

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "vocab_size": 8}')
    return tmp_path


def parse(raw: bytes):
    return parse_safetensors(np.frombuffer(raw, np.uint8), "toy.safetensors")


def index(folder, weight_map: dict) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


# ---- what it reads
def test_equals_the_package(folder):
    rng = np.random.default_rng(0)
    arrays = {
        "matrix": rng.standard_normal((8, 96), dtype=np.float32),
        "half": rng.standard_normal((4, 32)).astype(np.float16),
        "vector": rng.standard_normal(33).astype(np.float32),
        "half_vector": rng.standard_normal(7).astype(np.float16),
    }
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(folder, matrices="f32")
    assert checkpoint.format == "hf" and checkpoint.config["vocab_size"] == 8 and checkpoint.notes == []
    assert {n: (h.shape, h.nbytes) for n, h in checkpoint.headers.items()} == {
        n: (a.shape, a.nbytes) for n, a in arrays.items()
    }
    for name, array in arrays.items():
        tensor = checkpoint.read(name)
        assert tensor.kind == "f32" and np.array_equal(dequantize(tensor), array.astype(np.float32)), name
    rounded = open_checkpoint(folder)
    assert {name: rounded.kind_of(name) for name in arrays} == {
        "matrix": "bf16", "half": "bf16", "vector": "f32", "half_vector": "f32",
    }  # fmt: skip
    assert len(rounded.notes) == 2
    for name in arrays:
        assert rounded.read(name).nbytes == rounded.stored_bytes(name)
    error = np.abs(dequantize(rounded.read("matrix")) - arrays["matrix"])
    assert error.max() > 0 and (error <= np.abs(arrays["matrix"]) / 256).all()


def test_bf16_bits_are_kept_wherever_they_stand(folder):
    bits = np.arange(64, dtype=np.uint16)
    table = {"odd": entry("U8", [1], 0, 1), "w": entry("BF16", [2, 32], 1, 129)}
    (folder / "model.safetensors").write_bytes(file(table, b"\x07" + bits.tobytes()))
    checkpoint = open_checkpoint(folder)
    tensor = checkpoint.read("w")
    assert tensor.kind == "bf16" and tensor.data.flags.aligned and tensor.data.reshape(-1).tolist() == bits.tolist()
    with pytest.raises(BadFileError, match="odd has U8"):
        checkpoint.read("odd")


def test_one_file_under_another_name(folder):
    save_file({"w": np.ones((2, 2), np.float32)}, folder / "weights.safetensors")
    assert set(open_checkpoint(folder).headers) == {"w"}
    save_file({"w": np.ones((2, 2), np.float32)}, folder / "more.safetensors")
    with pytest.raises(MissingFileError, match=r"more.safetensors, weights.safetensors"):
        open_checkpoint(folder)
    save_file({"v": np.ones((2, 2), np.float32)}, folder / "model.safetensors")
    assert set(open_checkpoint(folder).headers) == {"v"}


def test_tokenizer_files_are_named(folder):
    save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text("{}")
    assert dict(open_checkpoint(folder).tokenizer) == {"tokenizer.json": folder / "tokenizer.json"}


def test_content_id_follows_config_header_and_time(folder):
    path = folder / "model.safetensors"
    save_file({"w": np.ones(2, np.float32)}, path)
    first = open_checkpoint(folder).content_id
    assert open_checkpoint(folder).content_id == first
    os.utime(path, ns=(5, 5))
    second = open_checkpoint(folder).content_id
    (folder / "config.json").write_text('{"vocab_size": 9}')
    assert len({first, second, open_checkpoint(folder).content_id}) == 3


# ---- shards
def test_the_index_decides_between_shards(folder):
    """T31: both shards hold w, the index points to the first; a file that it does not list is not opened."""
    save_file({"w": np.full(4, 1, np.float32), "a": np.zeros(1, np.float32)}, folder / "one.safetensors")
    save_file({"w": np.full(4, 2, np.float32), "b": np.zeros(1, np.float32)}, folder / "two.safetensors")
    (folder / "stray.safetensors").write_bytes(b"not a checkpoint")
    index(folder, {"w": "one.safetensors", "a": "one.safetensors", "b": "two.safetensors"})
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.headers) == {"w", "a", "b"}
    assert checkpoint.read("w").data.tolist() == [1, 1, 1, 1]
    index(folder, {"w": "two.safetensors", "a": "one.safetensors"})
    other = open_checkpoint(folder)
    assert other.read("w").data.tolist() == [2, 2, 2, 2] and set(other.headers) == {"w", "a"}


def test_a_tensor_that_the_index_promises(folder):
    save_file({"a": np.zeros(1, np.float32)}, folder / "one.safetensors")
    index(folder, {"a": "one.safetensors", "gone": "one.safetensors"})
    with pytest.raises(BadFileError, match="tensor gone") as caught:
        open_checkpoint(folder)
    assert caught.value.code == "st_missing_tensor"


def test_absent_shard(folder):
    index(folder, {"a": "one.safetensors"})
    with pytest.raises(MissingFileError, match=r"one.safetensors") as caught:
        open_checkpoint(folder)
    assert (caught.value.code, caught.value.exit_code) == ("shard_missing", 66)


@pytest.mark.parametrize("kind", ["parent", "absolute", "link", "nul"])
def test_a_shard_outside_the_folder_is_refused(kind, folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "x.safetensors"
    save_file({"a": np.zeros(1, np.float32)}, outside)
    names = {
        "parent": f"../../{outside.parent.name}/x.safetensors",
        "absolute": str(outside),
        "link": "link.safetensors",
        "nul": "a\x00b",
    }
    (folder / "link.safetensors").symlink_to(outside)
    index(folder, {"a": names[kind]})
    with pytest.raises(PolicyError) as caught:
        open_checkpoint(folder)
    assert (caught.value.code, caught.value.exit_code) == ("path_escape", 77)
    assert "\n" not in caught.value.line()


def test_the_hub_cache_of_links_is_read(tmp_path):
    """snapshots/REVISION/ holds links into blobs/ beside it; elsewhere links still lead out."""
    repository = tmp_path / "models--a--b"
    snapshot, blobs = repository / "snapshots" / "abc", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "config").write_text("{}")
    save_file({"a": np.ones(1, np.float32)}, blobs / "shard")
    (snapshot / "config.json").symlink_to(blobs / "config")
    (snapshot / "one.safetensors").symlink_to(blobs / "shard")
    index(snapshot, {"a": "one.safetensors"})
    assert open_checkpoint(snapshot).read("a").data.tolist() == [1]
    (repository / "elsewhere").symlink_to(blobs / "shard")
    save_file({"a": np.ones(1, np.float32)}, repository / "secret")
    (snapshot / "two.safetensors").symlink_to(repository / "secret")
    index(snapshot, {"a": "two.safetensors"})
    with pytest.raises(PolicyError):
        open_checkpoint(snapshot)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "[" * 100_000])
def test_bad_index(text, folder):
    (folder / INDEX).write_text(text)
    with pytest.raises(BadFileError) as caught:
        open_checkpoint(folder)
    assert caught.value.code == "st_bad_index" and "\n" not in caught.value.line()


# ---- folders
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "consolidated.00.pth"])
def test_pickled_weights_are_refused(name, folder):
    (folder / name).write_bytes(b"\x80\x02.")
    for path in (folder, folder / name):
        with pytest.raises(PolicyError, match="convert to safetensors") as caught:
            open_checkpoint(path)
        assert (caught.value.code, caught.value.exit_code) == ("unsafe_format", 77)
    save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
    assert set(open_checkpoint(folder).headers) == {"w"}


def test_empty_folder(tmp_path):
    with pytest.raises(MissingFileError):
        open_checkpoint(tmp_path)


def test_a_safetensors_file_is_named_by_its_folder(folder):
    save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
    with pytest.raises(BadFileError, match="name the folder"):
        open_checkpoint(folder / "model.safetensors")


def test_no_config(tmp_path):
    save_file({"w": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(MissingFileError, match=r"config\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "[1]", "nope", "{" * 50_000, '{"a":' * 20_000])
def test_bad_config(text, folder):
    save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(folder)
    assert (caught.value.code, caught.value.exit_code) == ("bad_config", 78)
    assert "\n" not in caught.value.line()


def test_the_limit_on_json_beside_the_weights(folder, monkeypatch):
    save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}" + " " * 98)
    monkeypatch.setattr(reader_module, "MAX_JSON", 100)
    open_checkpoint(folder)
    monkeypatch.setattr(reader_module, "MAX_JSON", 99)
    with pytest.raises(ConfigError, match="more than 99 bytes"):
        open_checkpoint(folder)


def test_code_beside_the_weights_is_not_run(folder):
    save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "evil.Model"}, "trust_remote_code": true}')
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    open_checkpoint(folder).close()
    assert "evil" not in sys.modules


# ---- headers
@pytest.mark.parametrize("name", BAD)
def test_bad_header(name, folder):
    raw, code = BAD[name]
    (folder / "model.safetensors").write_bytes(raw)
    with pytest.raises(BadFileError) as caught:
        open_checkpoint(folder)
    error = caught.value
    assert (error.code, error.exit_code) == (code, 65)
    assert error.line().startswith(f"error: {code}: {folder / 'model.safetensors'}: ")
    assert "(offset " in error.line() and "\n" not in error.line() and len(error.line()) < 600


def test_an_empty_tensor_at_the_end_is_no_overlap():
    headers, _, _ = parse(file({"a": W, "z": entry("F32", [0, 3], 16, 16)}, bytes(16)))
    assert headers["z"].shape == (0, 3)


def test_eight_dims_are_read():
    assert parse(file({"a": entry("U8", [1] * 8, 0, 1)}, b"1"))[0]["a"].shape == (1,) * 8


def test_the_limit_on_headers_is_the_formats_own():
    assert MAX_HEADER == 100 * 1024 * 1024
    for length, code in ((MAX_HEADER, "st_truncated"), (MAX_HEADER + 1, "st_header_too_large")):
        with pytest.raises(BadFileError) as caught:
            parse(struct.pack("<Q", length))
        assert caught.value.code == code


def test_mutated_headers_never_crash():
    rng = random.Random(7)
    table = {
        "__metadata__": {"format": "pt"},
        "a": W,
        "b": entry("BF16", [4, 2], 16, 32),
        "c": entry("F16", [1], 32, 34),
    }
    good = file(table, bytes(34))
    assert set(parse(good)[0]) == {"a", "b", "c"}
    tokens = [b"-1", b"1e9", b"null", b"true", b'"', b"{", b"]", b"0", b"99999999999999999999", b"\xff", b'"F64"']
    codes = {code for _, code in BAD.values()} | {"read"}
    outcomes: dict[str, int] = {}
    for _ in range(4000):
        raw = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(len(raw))
            if rng.random() < 0.5:
                raw[at] = rng.randrange(256)
            else:
                token = rng.choice(tokens)
                raw[at : at + rng.randrange(len(token) + 1)] = token
        if rng.random() < 0.7:  # keep the length right, so that the JSON itself is reached
            raw[:8] = struct.pack("<Q", max(0, len(raw) - 8 - 34))
        try:
            parse(bytes(raw))
            outcome = "read"
        except OctavoError as error:
            outcome = error.code
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes.keys() <= codes, outcomes
    assert len(outcomes) >= 7, outcomes
