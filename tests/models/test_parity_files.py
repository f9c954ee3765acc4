"""Parity through files: what transformers saves, our readers open; and the same weights in every stage of lowering."""

import numpy as np
import pytest
from stepping import Run, Stepper
from test_parity import TOLERANCE
from tiny import MEMBERS, logits_of, prompt_of, stepper_of, tensors_of, twin

from octavo.backends import executor_for
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.lower import bind, default_kinds, fuse, quantize
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.match import match
from octavo.weights.prepare import prepare

TOKENS = prompt_of(60, seed=4)


@pytest.mark.parametrize("member", MEMBERS)
def test_saved_by_transformers(member, tmp_path):
    model, _ = twin(member)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path, matrices="f32")
    program = program_for(ModelConfig.from_mapping(checkpoint.config))
    tensors = {
        name: prepare(checkpoint.read(source), program.weights[name].prep)
        for name, source in match(program.weights, checkpoint).items()
    }
    got = Stepper(executor_for("reference"), program, tensors).prompt(TOKENS)
    assert np.abs(got - logits_of(model, TOKENS)).max() <= TOLERANCE


@pytest.mark.parametrize("member", ["llama-biased", "qwen3", "smollm3"])
def test_fused_equals_quantized_bit_for_bit_and_is_near_float32(member):
    """Only the explicit quantize operators round: fusing changes no bit, and both stay near the plain program."""
    model, mapping = twin(member)
    plain = program_for(ModelConfig.from_mapping(mapping))
    quantized = quantize(bind(plain, default_kinds(plain)))
    tensors = tensors_of(model, plain)
    full = stepper_of(model, mapping).prompt(TOKENS)
    results = []
    for program in (quantized, fuse(quantized)):
        stepper = Stepper(executor_for("reference"), program, tensors, lower=False)
        chunks = [stepper.prompt(TOKENS[:41]), stepper.step(Run(0, 41, tuple(TOKENS[41:])))]
        results.append(np.concatenate(chunks))
    assert np.array_equal(*results)
    error = np.abs(results[0] - full).max()
    assert 10 * TOLERANCE < error < 0.1 * full.std() * 5


def test_dtypes_of_the_reference():
    model, mapping = twin("llama")
    exact, rounded = (stepper_of(model, mapping, dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert (exact.program.stage, rounded.program.stage) == ("bound", "fused")
    assert exact.session.numerics.id == "reference-1/f32/f32/kv-f32/torch-cpu"
    assert rounded.session.numerics.id == "reference-1/f32/bf16/kv-bf16/torch-cpu"
    assert exact.session.cache_bytes().shape[1] == 2 * rounded.session.cache_bytes().shape[1]
    wide, narrow = exact.prompt(TOKENS), rounded.prompt(TOKENS)
    assert 0 < np.abs(wide - narrow).max() < 1
