"""`octavo quantize` on tiny models: what it writes loads and runs, in both formats; what it refuses."""

import hashlib
import json
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import transformers
from gguf_model import write_gguf_model
from quantized import write_quantized
from safetensors.numpy import load_file, save_file
from tiny_model import CONFIG, TEMPLATE, random_tensors, write_tokenizer

from octavo import LLM, SamplingParams
from octavo.cli.main import main
from octavo.config import EngineConfig
from octavo.engine.fidelity import Scorer
from octavo.quantize import SCHEMES
from octavo.weights.checkpoint import open_checkpoint

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
CALIBRATED = [name for name, scheme in SCHEMES.items() if scheme.calibrated]
TEXT = "the man in an inn then and the hen ran there, as a better answer than a rather thin theme. " * 40
IDS = [256, *TEXT.encode()[:40]]
# How far logits move, as a share of their length: random layers make a share of 1 into one of 4 or 5.
NEAR = {"q4": 0.5, "q8": 0.04, "gptq": 0.6, "awq": 0.5, "smoothquant": 0.04}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder, the same model as a GGUF file, and a text."""
    home = tmp_path_factory.mktemp("models")
    folder, config = home / "folder", CONFIG | SIZES
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    save_file(random_tensors(config, 4), folder / "model.safetensors")
    write_gguf_model(folder, home / "model.gguf", template=TEMPLATE)
    (home / "text").write_text(TEXT)
    return home


@pytest.fixture
def octavo(models, capsys):
    """octavo(scheme, source, out, words...) -> (exit code, stdout, stderr)."""

    def call(scheme, source, out, *words):
        text = ("--calibration", models / "text", "--calibration-tokens", 512) if scheme in CALIBRATED else ()
        given = ("quantize", source, out, "--scheme", scheme, "--threads", 1, *text, *words)
        code = main([str(word) for word in given])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def logits_of(model, **options):
    scorer = Scorer(EngineConfig(model=str(model), threads=1, **options), len(IDS), lambda done, total: None)
    try:
        return np.concatenate([np.array(each) for each in scorer.logits(IDS, 1)])
    finally:
        scorer.close()


def distance(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("source", ["folder", "model.gguf"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_written_answers_as_the_model_did(octavo, models, tmp_path, scheme, source):
    out = tmp_path / ("out.gguf" if source.endswith("gguf") and scheme not in CALIBRATED else "out")
    code, said, _ = octavo(scheme, models / source, out, "--json")
    assert code == 0
    report = json.loads(said.splitlines()[-1])
    assert [*tmp_path.iterdir()] == [out]  # nothing is left beside it
    layers = [one for one in report["matrices"] if "layers" in one["name"] or "blk" in one["name"]]
    assert len(layers) == 7 * CONFIG["num_hidden_layers"]
    assert all(0 < one["error"] <= 1.01 * one["plain"] for one in layers)
    exact = {"executor": "reference", "dtype": "float32"}
    before = logits_of(models / source, **exact)
    held = logits_of(out, **exact)
    assert 0 < distance(held, before) < NEAR[scheme]
    assert distance(logits_of(out, activations="int15"), held) < 0.02
    llm = LLM(str(out), threads=1, num_blocks=64)
    try:
        [result] = llm.generate([TEXT[:20]], SamplingParams(max_tokens=4, temperature=0.0))
        assert len(result.outputs[0].token_ids) == 4
    finally:
        llm.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_same_bits_each_time(octavo, models, tmp_path, scheme):
    sums = []
    for name in ("one", "two"):
        assert octavo(scheme, models / "folder", tmp_path / name)[0] == 0
        sums.append(hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).digest())
    assert sums[0] == sums[1]


@pytest.mark.parametrize("scheme", CALIBRATED)
def test_both_formats_of_a_model_give_the_same_folder(octavo, models, tmp_path, scheme):
    for name, source in (("one", "folder"), ("other", "model.gguf")):
        assert octavo(scheme, models / source, tmp_path / name)[0] == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype and (array == other[name]).all(), name


def test_gptq_loses_less_on_the_text_than_rounding(octavo, models, tmp_path):
    _, said, _ = octavo("gptq", models / "folder", tmp_path / "out", "--json")
    report = json.loads(said.splitlines()[-1])
    assert report["tokens"] == 512 and report["group"] == 64
    assert all(one["error"] < 0.7 * one["plain"] for one in report["matrices"])
    assert "as a share of its answers to 512 tokens" in " ".join(said.split())


def test_a_gguf_file_keeps_its_metadata(octavo, models, tmp_path):
    assert octavo("q4", models / "model.gguf", tmp_path / "out.gguf")[0] == 0
    before, after = gguf.GGUFReader(models / "model.gguf"), gguf.GGUFReader(tmp_path / "out.gguf")
    kept = [name for name in before.fields if not name.startswith("GGUF.") and name != "general.file_type"]
    assert all(before.fields[name].contents() == after.fields[name].contents() for name in kept)
    assert all(before.fields[name].types == after.fields[name].types for name in kept)
    assert after.fields["general.file_type"].contents() == 2
    kinds = {tensor.name: tensor.tensor_type.name for tensor in after.tensors}
    assert kinds["output.weight"] == "Q8_0" and kinds["blk.0.ffn_up.weight"] == "Q4_0"
    assert kinds["blk.0.ffn_norm.weight"] == "F32"
    norms = [{t.name: t.data for t in reader.tensors}["blk.1.attn_norm.weight"] for reader in (before, after)]
    assert (norms[0] == norms[1]).all()


def test_the_folder_of_a_gguf_file_has_its_tokenizer(octavo, models, tmp_path):
    assert octavo("gptq", models / "model.gguf", tmp_path / "out")[0] == 0
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = LLM(str(models / "model.gguf"), threads=1, num_blocks=64)
    try:
        wanted = ours.tokenizer.encode("the then, thé", add_special=True)
    finally:
        ours.close()
    assert theirs.encode("the then, thé") == wanted and wanted[0] == CONFIG["bos_token_id"]
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").hidden_size == 64


def test_the_folder_says_what_was_done(octavo, models, tmp_path):
    stated = {}
    for scheme in SCHEMES:
        assert octavo(scheme, models / "folder", tmp_path / scheme)[0] == 0
        config = json.loads((tmp_path / scheme / "config.json").read_text())
        stated[scheme] = config.pop("quantization_config")
        assert config == CONFIG | SIZES
        assert (tmp_path / scheme / "tokenizer.json").exists()
    assert stated["gptq"] == {
        **{"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False},
        **{"checkpoint_format": "gptq", "lm_head": False},
    }
    assert stated["q4"]["ignore"] == stated["smoothquant"]["ignore"] == ["lm_head"]
    with_head = open_checkpoint(tmp_path / "awq")
    assert with_head.headers["lm_head.weight"].dtype == "F32"
    with_head.close()


# ---- refusals
@pytest.fixture
def refused(octavo):
    """refused(code, word, scheme, source, out, words...) -> the line."""

    def call(code, word, *given):
        found, out, err = octavo(*given)
        assert (found, out) == (code, "") and err.startswith(f"error: {word}: ") and err.count("\n") == 1, err
        return err

    return call


def test_a_place_that_is_taken(refused, models, tmp_path):
    (tmp_path / "out").mkdir()
    assert str(tmp_path / "out") in refused(2, "out_exists", "gptq", models / "folder", tmp_path / "out")
    refused(66, "file_missing", "q8", models / "folder", tmp_path / "no" / "out")
    assert [*tmp_path.iterdir()] == [tmp_path / "out"]


def test_a_name_that_does_not_fit_the_format(refused, models, tmp_path):
    assert ".gguf" in refused(2, "usage", "q4", models / "model.gguf", tmp_path / "out")
    refused(2, "usage", "gptq", models / "model.gguf", tmp_path / "out.gguf")
    assert not [*tmp_path.iterdir()]


def test_without_torch(refused, models, tmp_path, monkeypatch):
    monkeypatch.setattr("octavo.quantize.find_spec", lambda name: None)
    assert "octavo[torch]" in refused(69, "torch_missing", "q4", models / "folder", tmp_path / "out")


def test_a_full_disk(refused, models, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    refused(69, "disk_full", "q8", models / "folder", tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_a_model_that_is_quantized_already(refused, tmp_path):
    write_quantized(tmp_path / "in", tmp_path / "plain", "gptq")
    assert "quantized already (gptq)" in refused(2, "unsupported", "q4", tmp_path / "in", tmp_path / "out")


def test_sizes_that_do_not_divide(refused, models, tmp_path):
    assert "do not divide 64" in refused(
        2, "unsupported", "gptq", models / "folder", tmp_path / "out", "--group-size", 48
    )
    assert "groups are of 32" in refused(2, "usage", "q4", models / "folder", tmp_path / "out", "--group-size", 64)
    refused(2, "usage", "q4", models / "folder", tmp_path / "out", "--group-size", 0)


def test_a_text_that_is_too_short_or_none(refused, models, tmp_path):
    short = tmp_path / "short"
    short.write_text("the")
    source, out = models / "folder", tmp_path / "out"
    refused(2, "invalid_value", "gptq", source, out, "--calibration", short)
    refused(66, "file_missing", "gptq", source, out, "--calibration", tmp_path / "none")
    short.write_bytes(b"\xff\xfe")
    refused(65, "bad_text", "gptq", source, out, "--calibration", short)
    refused(2, "usage", "q8", source, out, "--calibration", models / "text")


def test_experts_take_the_schemes_that_need_no_text(octavo, refused, tmp_path):
    config = (
        CONFIG | SIZES | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2}
    )
    tensors = random_tensors(config, 1)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for ours, name in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
            matrix = tensors.pop(f"{at}mlp.{ours}.weight")
            for expert in range(4):
                tensors[f"{at}block_sparse_moe.experts.{expert}.{name}.weight"] = matrix + 0.01 * expert
        tensors[f"{at}block_sparse_moe.gate.weight"] = np.eye(4, 64, dtype=np.float32)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    save_file(tensors, folder / "model.safetensors")
    assert "only q4 and q8" in refused(2, "unsupported", "awq", folder, tmp_path / "out")
    assert octavo("q8", folder, tmp_path / "out")[0] == 0
    stated = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert "model.layers.1.block_sparse_moe.gate" in stated["ignore"]
    exact = {"executor": "reference", "dtype": "float32"}
    assert (
        distance(logits_of(tmp_path / "out", **exact), logits_of(folder, **exact)) < 2 * NEAR["q8"]
    )  # rows may go to other experts
