"""Bad inputs through the commands: each lying file ends with its exit code and one line that names it."""

import json
import tracemalloc

import numpy as np
import pytest
from bad.configs import CONFIGS, PROGRAMS, TEXTS
from bad.gguf import BAD as GGUF
from bad.safetensors import BAD as SAFETENSORS
from bad.templates import BAD as TEMPLATES
from bad.tokenizers import FILES, KEYS
from gguf_model import write_gguf_model
from quantized import write_quantized
from safetensors.numpy import load_file, save_file

INDEX = "model.safetensors.index.json"


@pytest.fixture(params=["show", "explain", "run"])
def words(request):
    """words(model) -> a command that reads it."""
    return lambda model: (request.param, model, *(["hello"] if request.param == "run" else []))


@pytest.fixture(params=["explain", "run"])
def program_words(request):
    return lambda model: (request.param, model, *(["hello"] if request.param == "run" else []))


def change(folder, fields):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


# ---- weights
@pytest.mark.parametrize("name", GGUF)
def test_gguf(refused, words, tmp_path, name):
    raw, code = GGUF[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    assert f"{code}: {path}: " in (line := refused(65, code, *words(path))) and "(offset " in line


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors(refused, words, copy, name):
    raw, code = SAFETENSORS[name]
    (copy / "model.safetensors").write_bytes(raw)
    line = refused(65, code, *words(copy))
    assert f"{code}: {copy / 'model.safetensors'}: " in line and "(offset " in line


@pytest.mark.parametrize(
    ("change_config", "lost", "code"),
    [
        ({}, "model.layers.1.mlp.up_proj.scales", (65, "quant_missing")),
        ({"group_size": 16}, None, (65, "quant_shape")),
        ({"bits": 8}, None, (65, "quant_shape")),
        ({"quant_method": "fp8"}, None, (65, "quant_mixed")),
        ({"quant_method": "exl3"}, None, (78, "unsupported")),
        ({"bits": 4.5}, None, (78, "bad_config")),
    ],
)
def test_quantized(refused, words, tmp_path, change_config, lost, code):
    write_quantized(tmp_path / "model", tmp_path / "plain", "gptq")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    change(tmp_path / "model", {"quantization_config": config["quantization_config"] | change_config})
    if lost:
        path = tmp_path / "model" / "model.safetensors"
        save_file({name: array for name, array in load_file(path).items() if name != lost}, path)
    line = refused(*code, *words(tmp_path / "model"))
    assert str(tmp_path / "model") in line and (lost is None or lost in line)


@pytest.mark.parametrize("shard", ["../../../etc/passwd", "/etc/passwd", "link.safetensors", "a\x00b"])
def test_a_shard_outside_the_folder(refused, words, copy, tmp_path, shard):
    save_file({"w": np.ones(1, np.float32)}, tmp_path / "outside.safetensors")
    (copy / "link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    (copy / INDEX).write_text(json.dumps({"weight_map": {"w": shard}}))
    assert str(copy / INDEX) in refused(77, "path_escape", *words(copy))


def test_an_absent_shard(refused, words, copy):
    (copy / INDEX).write_text(json.dumps({"weight_map": {"w": "model-00002-of-00002.safetensors"}}))
    assert "model-00002-of-00002.safetensors" in refused(66, "shard_missing", *words(copy))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "[" * 100_000])
def test_a_bad_index(refused, words, copy, text):
    (copy / INDEX).write_text(text)
    assert str(copy / INDEX) in refused(65, "st_bad_index", *words(copy))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_pickled_weights(refused, words, copy, name):
    (copy / "model.safetensors").unlink()
    (copy / name).write_bytes(b"\x80\x02.")
    for path in (copy, copy / name):
        assert "convert to safetensors" in refused(77, "unsafe_format", *words(path))


# ---- configuration
@pytest.mark.parametrize("name", CONFIGS)
def test_configurations(refused, words, copy, name):
    fields, exit_code, code, word = CONFIGS[name]
    change(copy, fields)
    line = refused(exit_code, code, *words(copy))
    assert word in line and str(copy) in line


@pytest.mark.parametrize("name", PROGRAMS)
def test_configurations_that_do_not_fit_the_tensors(refused, program_words, copy, name):
    fields, exit_code, code, word = PROGRAMS[name]
    change(copy, fields)
    line = refused(exit_code, code, *program_words(copy))
    assert word in line and str(copy) in line


@pytest.mark.parametrize("name", TEXTS)
def test_configurations_that_are_no_json(refused, words, copy, name):
    (copy / "config.json").write_text(TEXTS[name])
    assert str(copy / "config.json") in refused(78, "bad_config", *words(copy))
    (copy / "model.safetensors").unlink()  # a bare configuration can be explained; this one cannot
    assert str(copy / "config.json") in refused(78, "bad_config", "explain", copy)


def test_gguf_configuration(refused, program_words, model, tmp_path):
    """Sizes that contradict the tensors, and a vocabulary size beyond the rows of the embedding."""
    path = write_gguf_model(model, tmp_path / "a.gguf", keys={"llama.vocab_size": 300})
    assert "vocab_size" in (line := refused(78, "bad_config", *program_words(path))) and path in line
    path = write_gguf_model(model, tmp_path / "b.gguf", keys={"llama.rope.scaling.type": "su"})
    assert "rope.scaling.type" in refused(78, "unsupported", *program_words(path))


def test_code_in_a_checkpoint_is_ignored_with_a_note(octavo, copy, monkeypatch):
    marks = {"auto_map": {"AutoModel": "evil.Model"}, "trust_remote_code": True, "_attn_implementation_internal": "x/y"}
    change(copy, marks)
    (copy / "evil.py").write_text("raise SystemExit('ran')")
    monkeypatch.chdir(copy)
    shown = octavo("show", copy)
    ran = octavo("run", copy, "hello", "--max-tokens", 2, "--threads", 1)
    assert (shown.code, ran.code) == (0, 0)
    for name in marks:
        assert f"{name} is ignored: a checkpoint runs no code" in shown.out
        assert f"note: {name} is ignored: a checkpoint runs no code\n" in ran.err


# ---- tokenizer and template
@pytest.fixture(params=["show", "run"])
def text_words(request):
    return lambda model: (request.param, model, *(["hello"] if request.param == "run" else []))


@pytest.mark.parametrize("name", FILES)
def test_tokenizer_files(refused, text_words, copy, name):
    file, text, code = FILES[name]
    (copy / file).write_text(text)
    assert str(copy / file) in refused(65, code, *text_words(copy))


def test_no_tokenizer(refused, octavo, copy):
    (copy / "tokenizer.json").unlink()
    assert "no tokenizer.json" in octavo("show", copy).out
    assert str(copy) in refused(66, "tokenizer_missing", "run", copy, "hello")


@pytest.mark.parametrize("name", KEYS)
def test_tokenizer_keys(refused, text_words, model, tmp_path, name):
    fields, code, word = KEYS[name]
    path = write_gguf_model(model, tmp_path / "bad.gguf", tokenizer=fields)
    line = refused(65, code, *text_words(path))
    assert word in line and path in line


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates(refused, copy, name):
    (copy / "chat_template.jinja").write_text(TEMPLATES[name])
    assert str(copy) in refused(65, "bad_chat_template", "show", copy)


@pytest.mark.parametrize("name", ["dunder", "nested far", "source"])
def test_templates_are_tried_at_load(refused, copy, model, tmp_path, name):
    (copy / "chat_template.jinja").write_text(TEMPLATES[name])
    assert str(copy) in refused(65, "bad_chat_template", "run", copy, "hello")
    path = write_gguf_model(model, tmp_path / "bad.gguf", template=TEMPLATES[name])
    assert path in refused(65, "bad_chat_template", "run", path, "hello")


def test_a_template_without_end(refused, copy, monkeypatch):
    monkeypatch.setattr("octavo.text.chat.MAX_SECONDS", 0.3)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    (copy / "chat_template.jinja").write_text(loop)
    for words in (("show", copy), ("run", copy, "hello")):
        assert "no result after 0.3 s" in refused(65, "bad_chat_template", *words)


@pytest.mark.parametrize("name", ["2^60 keys", "2^60 tensors", "key of 10^12 bytes", "strings past the end"])
def test_huge_counts_allocate_nothing(refused, tmp_path, name):
    raw, code = GGUF[name]
    path = tmp_path / "huge.gguf"
    path.write_bytes(raw)
    refused(65, code, "explain", path)  # what is imported and compiled once
    tracemalloc.start()
    try:
        refused(65, code, "explain", path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
