"""The text model of a checkpoint that also has a part for images: its fields and its names stand apart."""

import numpy as np
import pytest
from safetensors.numpy import save_file
from stepping import Stepper
from test_parity import TOLERANCE
from tiny import logits_of, prompt_of, twin

from octavo.backends import executor_for
from octavo.errors import BadFileError
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.match import match

TOKENS = prompt_of(60, seed=4)
PARTS = {"vision_tower.encoder.weight": (3, 4), "multi_modal_projector.mm_soft_emb_norm.weight": (4,)}


def whole(mapping):
    """config.json as the whole model has it."""
    text = {name: value for name, value in mapping.items() if name not in ("architectures", "eos_token_id")}
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 4},
        "eos_token_id": [1, 106],
        "tie_word_embeddings": False,
    }


@pytest.mark.parametrize("generation", ["older", "newer"])
def test_the_text_part_runs_alone(generation, tmp_path):
    model, mapping = twin("gemma3")
    tensors = {}
    for name, tensor in model.state_dict().items():
        newer = name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
        tensors[f"language_model.{name}" if generation == "older" else newer] = np.ascontiguousarray(tensor.numpy())
    for name, shape in PARTS.items():
        tensors[name if generation == "older" else f"model.{name}"] = np.zeros(shape, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    checkpoint = open_checkpoint(tmp_path, matrices="f32")
    config = ModelConfig.from_mapping(whole(mapping))
    assert config.eos_ids == (1, 106)
    program = program_for(config)
    sources = match(program.weights, checkpoint, program.spare)
    held = {name: checkpoint.stored(source, program.weights[name].prep).read() for name, source in sources.items()}
    got = Stepper(executor_for("reference"), program, held).prompt(TOKENS)
    assert np.abs(got - logits_of(model, TOKENS)).max() <= TOLERANCE
    with pytest.raises(BadFileError, match="which this architecture does not use"):
        match(program.weights, checkpoint)


def test_silence_means_what_the_class_says():
    """The fields of a released file: the rest are defaults."""
    stated = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = ModelConfig.from_mapping(
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": stated, "torch_dtype": "bfloat16"}
    )
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    program = program_for(config)
    assert [group.name for group in program.groups] == ["window.1024", "full"]
    angles = [op for op in program.ops if op.kind == "rope_angles"]
    assert angles[0].attrs["inv_freq"][1] == pytest.approx(1e6 ** (-2 / 256) / 8, rel=1e-6)
    assert angles[1].attrs["inv_freq"][1] == pytest.approx(1e4 ** (-2 / 256), rel=1e-6)
    assert next(op for op in program.ops if op.kind == "embed").attrs["scale"] == 50.5
