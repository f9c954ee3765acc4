"""The GGUF reader: what it reads, and that each way of lying in a header has its code, exit status and one line."""

from __future__ import annotations

import os
import random
import struct

import numpy as np
import pytest
from bad.gguf import BAD, F32_4
from gguf_bytes import array, file, key, string, tensor, text, u32

import octavo.weights.gguf as reader_module
from octavo.errors import BadFileError, MissingFileError, OctavoError
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.gguf import parse_gguf


def parse(raw: bytes):
    return parse_gguf(np.frombuffer(raw, np.uint8), "toy.gguf")


@pytest.mark.parametrize("version", [2, 3])
def test_a_file_made_by_hand(version, tmp_path):
    keys = [
        text("general.architecture", "llama"),
        u32("llama.block_count", 3),
        key("llama.eps", 6, struct.pack("<f", 0.5)),
        key("llama.flag", 7, b"\x01"),
        key("llama.low", 11, struct.pack("<q", -7)),
        array("tokens", 8, 3, string("a") + string("") + string("ż")),
        array("scores", 6, 2, struct.pack("<2f", 1.5, -2)),
        array("empty", 8, 0, b""),
    ]
    values = np.arange(6, dtype=np.float32)
    raw = file(
        keys, [tensor("v", (4,)), tensor("m", (3, 2), 0, 32)], F32_4 + bytes(16) + values.tobytes(), version=version
    )
    path = tmp_path / "toy.gguf"
    path.write_bytes(raw)
    checkpoint = open_checkpoint(path, matrices="f32")
    assert checkpoint.format == "gguf"
    assert checkpoint.config == checkpoint.tokenizer
    assert dict(checkpoint.config) == {
        "general.architecture": "llama", "llama.block_count": 3, "llama.eps": 0.5, "llama.flag": True,
        "llama.low": -7, "tokens": ["a", "", "ż"], "scores": [1.5, -2.0], "empty": [],
    }  # fmt: skip
    assert checkpoint.headers["m"].shape == (2, 3)
    assert checkpoint.read("v").data.tolist() == [0, 1, 2, 3]
    assert checkpoint.read("m").data.tolist() == values.reshape(2, 3).tolist()


def test_reads_what_the_package_writes(write_gguf):
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((8, 64), dtype=np.float32)
    tensors = {"a": ("Q8_0", matrix), "b": ("F16", matrix), "c": ("F32", matrix[0]), "d": ("Q4_1", matrix)}
    words = [f"word {i} ü" for i in range(500)]
    path = write_gguf(tensors, {"llama.block_count": 2, "words": words, "ids": [1, 2, 3], "name": "toy"})
    checkpoint = open_checkpoint(path)
    assert checkpoint.config["words"] == words and checkpoint.config["ids"] == [1, 2, 3]
    assert {name: checkpoint.kind_of(name) for name in checkpoint.headers} == {
        "a": "i8", "b": "bf16", "c": "f32", "d": "u4",
    }  # fmt: skip
    assert {name: h.dtype for name, h in checkpoint.headers.items()} == {
        "a": "Q8_0",
        "b": "F16",
        "c": "F32",
        "d": "Q4_1",
    }
    assert checkpoint.headers["d"].nbytes == 8 * 64 // 32 * 20
    assert checkpoint.notes == ["F16 matrices are held as bf16, rounded to nearest even"]


def test_alignment_of_the_file_is_obeyed():
    raw = file([u32("general.alignment", 64)], [tensor("v", (4,))], F32_4, alignment=64)
    assert parse(raw).offsets["v"] % 64 == 0


@pytest.mark.parametrize(
    "last",
    [
        u32("k", 7), text("k", "v"), text("k", ""), array("k", 4, 2, bytes(8)), array("k", 4, 0, b""),
        array("k", 8, 1, string("v")), array("k", 8, 1, string("")), array("k", 8, 0, b""), key("k", 0, b"\x07"),
    ],
)  # fmt: skip
def test_a_header_may_end_with_the_file(last):
    raw = file([text("name", "toy"), last], alignment=1)
    assert parse(raw).metadata.keys() == {"name", "k"}
    with pytest.raises(BadFileError) as caught:
        parse(raw[:-1])
    assert caught.value.code == "gguf_truncated"


@pytest.mark.parametrize("alignment", [1, 1 << 20])
def test_extreme_alignments(alignment):
    raw = file([u32("general.alignment", alignment)], [tensor("v", (4,))], F32_4, alignment=alignment)
    assert parse(raw).offsets["v"] % alignment == 0
    with pytest.raises(BadFileError):
        parse(file([u32("general.alignment", 1 << 21)]))


def test_content_id_follows_header_and_time(write_gguf):
    tensors = {"a": ("F32", np.zeros((2, 32), np.float32))}
    path = write_gguf(tensors)
    first = open_checkpoint(path).content_id
    assert open_checkpoint(path).content_id == first
    os.utime(path, ns=(1, 1))
    assert open_checkpoint(path).content_id != first
    assert open_checkpoint(write_gguf(tensors, {"x": 1})).content_id != first


def test_tensors_outlive_the_checkpoint(write_gguf):
    path = write_gguf({"a": ("F32", np.arange(32, dtype=np.float32))})
    checkpoint = open_checkpoint(path)
    tensor_read = checkpoint.read("a")
    checkpoint.close()
    assert tensor_read.data.tolist() == list(range(32))


@pytest.mark.parametrize("name", BAD)
def test_bad_header(name, tmp_path):
    raw, code = BAD[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises(BadFileError) as caught:
        open_checkpoint(path)
    error = caught.value
    assert (error.code, error.exit_code) == (code, 65)
    assert error.line().startswith(f"error: {code}: {path}: ") and "\n" not in error.line()
    assert len(error.line()) < 600
    assert "(offset " in error.line()


def test_an_unsupported_type_is_named():
    with pytest.raises(BadFileError, match="IQ2_XXS"):
        parse(BAD["IQ2_XXS"][0])


def test_the_table_starts_from_a_good_file():
    header = parse(file([u32("k", 1)], [tensor("t", (4,)), tensor("u", (4,), 0, 32)], bytes(48)))
    assert header.metadata == {"k": 1} and set(header.headers) == {"t", "u"}


def test_absent_file(tmp_path):
    with pytest.raises(MissingFileError) as caught:
        open_checkpoint(tmp_path / "absent.gguf")
    assert caught.value.exit_code == 66


def test_a_pipe_is_no_model(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(BadFileError, match="not a regular file"):
        open_checkpoint(tmp_path / "pipe.gguf")


CODES = {
    "gguf_bad_magic", "gguf_bad_version", "gguf_truncated", "gguf_count", "gguf_bad_type", "gguf_bad_string",
    "gguf_duplicate", "gguf_bad_alignment", "gguf_bad_ndims", "gguf_bad_shape", "gguf_bad_offset",
    "gguf_unsupported_type",
}  # fmt: skip


def test_codes_are_the_documented_ones():
    documented = set(reader_module.__doc__.split("Codes:")[1].replace(",", " ").replace(".", " ").split())
    assert documented == CODES == {code for _, code in BAD.values()}


def seed_file() -> bytes:
    keys = [
        text("general.architecture", "llama"), u32("llama.block_count", 3), u32("general.alignment", 32),
        array("tokens", 8, 4, b"".join(string(word) for word in ("a", "bc", "def", ""))),
        array("scores", 6, 4, bytes(16)), key("flag", 7, b"\x01"), key("wide", 12, bytes(8)),
    ]  # fmt: skip
    tensors = [tensor("a", (64, 2), 3), tensor("b", (32,), 0, 96), tensor("c", (256, 1), 14, 224)]
    return file(keys, tensors, bytes(224 + 210))


def mutate(raw: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(raw))
        choice = rng.randrange(5)
        if choice == 0:
            raw[at] ^= 1 << rng.randrange(8)
        elif choice == 1:
            raw[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif choice == 2:
            width = rng.choice((4, 8))
            raw[at : at + width] = rng.choice((0, 1, (1 << 8 * width) - 1, 1 << 31)).to_bytes(width, "little")
        elif choice == 3:
            del raw[at : at + rng.randrange(1, 16)]
        else:
            raw[at:at] = rng.randbytes(rng.randrange(1, 16))
    return bytes(raw)


def test_mutated_headers_never_crash():
    rng = random.Random(20)
    good = seed_file()
    parse(good)
    outcomes: dict[str, int] = {}
    for _ in range(6000):
        try:
            parse(mutate(bytearray(good), rng))
            outcome = "read"
        except OctavoError as error:
            outcome = error.code
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes.keys() <= CODES | {"read"}, outcomes
    assert len(outcomes) >= 10, outcomes


def test_every_prefix_of_a_file_is_refused():
    good = seed_file()
    for length in range(len(good)):
        with pytest.raises(BadFileError):
            parse(good[:length])


def test_real_header_equals_the_package(smollm2, smollm2_by_package):
    checkpoint, reader = open_checkpoint(smollm2), smollm2_by_package
    assert {t.name: tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors} == {
        name: header.shape for name, header in checkpoint.headers.items()
    }
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert fields.keys() == checkpoint.config.keys()
    for name, field in fields.items():
        if len(field.data) < 100:
            assert checkpoint.config[name] == field.contents(), name
    tokens = reader.fields["tokenizer.ggml.tokens"]
    assert len(checkpoint.config["tokenizer.ggml.tokens"]) == len(tokens.data)
    for index in (0, 1, 777, 49151):
        assert checkpoint.config["tokenizer.ggml.tokens"][index] == bytes(tokens.parts[tokens.data[index]]).decode()
    checkpoint.close()
