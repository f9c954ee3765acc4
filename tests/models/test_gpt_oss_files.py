"""gpt-oss as it is published: experts in MXFP4, gate and up rows in turn, everything else in floats."""

import json

import numpy as np
import torch
from safetensors.numpy import save_file
from stepping import Stepper
from test_parity import TOLERANCE
from tiny import MEMBERS, logits_of, prompt_of, twin

from octavo.backends import executor_for
from octavo.models.registry import program_for
from octavo.runner.model import model_config
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.match import match

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def packed(rng, experts, rows, columns):
    """(blocks, scales, the values that they stand for) of a stack."""
    blocks = rng.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
    scales = rng.integers(121, 124, blocks.shape[:3]).astype(np.uint8)
    values = np.stack((E2M1[blocks & 15], E2M1[blocks >> 4]), -1).reshape(*blocks.shape[:3], 32)
    return (
        blocks,
        scales,
        (values * 2.0 ** (scales[..., None].astype(np.float32) - 127)).reshape(experts, rows, columns),
    )


def test_experts_in_blocks_and_scales(tmp_path, monkeypatch):
    monkeypatch.setitem(
        MEMBERS, "gpt-oss-blocks", (MEMBERS["gpt-oss"][0], {**MEMBERS["gpt-oss"][1], "intermediate_size": 64})
    )
    model, mapping = twin("gpt-oss-blocks")
    rng, tensors = np.random.default_rng(0), {}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                experts, columns, rows = weight.shape
                blocks, scales, values = packed(rng, experts, rows, columns)
                weight.copy_(torch.from_numpy(values.swapaxes(1, 2).copy()))
                tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            else:
                tensors[name] = weight.numpy()
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**mapping, "quantization_config": {"quant_method": "mxfp4"}}))
    tokens = prompt_of(60, seed=4)
    want = logits_of(model, tokens)
    program, stored = open_weights(tmp_path, "f32")
    tensors = {name: one.read() for name, one in stored.items()}
    assert np.abs(Stepper(executor_for("reference"), program, tensors).prompt(tokens) - want).max() <= TOLERANCE
    program, stored = open_weights(tmp_path, "bf16")
    tensors = {name: one.read() for name, one in stored.items()}
    assert tensors["0.wegate"].kind not in ("f32", "bf16")
    native = Stepper(executor_for("native"), program, tensors)
    got = native.prompt(tokens)
    assert np.abs(got - want).mean() <= 0.03 * want.std()
    assert np.array_equal(native.prompt(tokens, slot=1, chunk=7), got)
    streamed = Stepper(executor_for("native"), program, stored)  # from the file, piece by piece
    assert np.array_equal(streamed.prompt(tokens), got)


def open_weights(folder, matrices):
    checkpoint = open_checkpoint(folder, matrices=matrices)
    program = program_for(model_config(checkpoint))
    found = match(program.weights, checkpoint)
    return program, {
        name: checkpoint.stored(source, weight.prep, kind=checkpoint.kind_for(weight, source))
        for name, source in found.items()
        for weight in [program.weights[name]]
    }
