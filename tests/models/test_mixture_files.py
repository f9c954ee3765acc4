"""Mixtures as they are published: gpt-oss with experts in MXFP4, gate and up rows in turn; a tensor an expert in FP8
with a scale a block."""

import json

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as torch_save
from stepping import Stepper
from test_parity import TOLERANCE
from tiny import MEMBERS, logits_of, prompt_of, twin

from octavo.backends import executor_for
from octavo.models.registry import program_for
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.match import match
from octavo.weights.stack import Stack
from octavo.weights.stated import model_config

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


SIDE = 32  # of a block with one scale


def in_blocks(values):
    """(e4m3 [rows, columns], scales [rows / 32, columns / 32], the values that they stand for), edges in part."""
    rows, columns = values.shape
    high, wide = -(-rows // SIDE), -(-columns // SIDE)
    padded = torch.zeros(high * SIDE, wide * SIDE)
    padded[:rows, :columns] = values
    blocks = padded.reshape(high, SIDE, wide, SIDE)
    scales = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    held = (codes.float() * scales[:, None, :, None]).reshape(padded.shape)[:rows, :columns]
    return codes.reshape(padded.shape)[:rows, :columns].contiguous(), scales, held


def test_a_tensor_an_expert_in_fp8(tmp_path, monkeypatch):
    monkeypatch.setitem(MEMBERS, "qwen3moe-fp8", MEMBERS["qwen3moe"])
    model, mapping = twin("qwen3moe-fp8")
    tensors = {}

    def put(name, values):
        codes, tensors[f"{name}_scale_inv"], held = in_blocks(values)
        tensors[name] = codes
        values.copy_(held)

    with torch.no_grad():
        for name, weight in model.named_parameters():
            stem, _, end = name.rpartition(".")
            if end in ("gate_up_proj", "down_proj"):
                halves = (
                    {"down_proj": weight}
                    if end == "down_proj"
                    else dict(zip(("gate_proj", "up_proj"), weight.chunk(2, dim=1), strict=True))
                )
                for half, stack in halves.items():
                    for e, one in enumerate(stack):
                        put(f"{stem}.{e}.{half}.weight", one)
            else:
                tensors[name] = weight.clone()
    torch_save(tensors, tmp_path / "model.safetensors")
    method = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [SIDE, SIDE]}
    (tmp_path / "config.json").write_text(json.dumps({**mapping, "quantization_config": method}))
    tokens = prompt_of(50)
    want = logits_of(model, tokens)
    program, stored = open_weights(tmp_path, "f32")
    tensors = {name: one.read() for name, one in stored.items()}
    assert np.abs(Stepper(executor_for("reference"), program, tensors).prompt(tokens) - want).max() <= TOLERANCE
    program, stored = open_weights(tmp_path, "bf16")
    assert isinstance(stored["0.wegate"], Stack) and stored["0.wegate"].kind == "fp8"
    got = Stepper(executor_for("native"), program, {name: one.read() for name, one in stored.items()}).prompt(tokens)
    assert np.abs(got - want).mean() <= 0.05 * want.std()
    assert np.array_equal(Stepper(executor_for("native"), program, stored).prompt(tokens), got)


def open_weights(folder, matrices):
    checkpoint = open_checkpoint(folder, matrices=matrices)
    program = program_for(model_config(checkpoint))
    found = match(program.weights, checkpoint)
    return program, {
        name: checkpoint.stored(source, weight.prep, kind=checkpoint.kind_for(weight, source))
        for name, source in found.items()
        for weight in [program.weights[name]]
    }
