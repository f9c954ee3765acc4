"""From a file to prepared weights, as the runner goes: configuration, program, match, read, prepare."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import BadFileError
from octavo.model_config import ModelConfig
from octavo.models import registry
from octavo.program.ir import Program
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.match import match
from octavo.weights.prepare import prepare

V, D, F, HEADS, KV, SIZE = 16, 64, 96, 2, 1, 32
METADATA = {
    "llama.block_count": 1, "llama.context_length": 64, "llama.embedding_length": D, "llama.feed_forward_length": F,
    "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV, "llama.vocab_size": V,
}  # fmt: skip
SHAPES = {
    "token_embd.weight": (V, D), "output_norm.weight": (D,), "blk.0.attn_norm.weight": (D,),
    "blk.0.ffn_norm.weight": (D,), "blk.0.attn_q.weight": (HEADS * SIZE, D), "blk.0.attn_k.weight": (KV * SIZE, D),
    "blk.0.attn_v.weight": (KV * SIZE, D), "blk.0.attn_output.weight": (D, HEADS * SIZE),
    "blk.0.ffn_gate.weight": (F, D), "blk.0.ffn_up.weight": (F, D), "blk.0.ffn_down.weight": (D, F),
}  # fmt: skip


@pytest.fixture
def llama(write_gguf):
    """A one-layer llama with Q4_0 matrices, no output.weight, and what else the test adds."""

    def write(**extra: np.ndarray) -> Checkpoint:
        rng = np.random.default_rng(3)
        arrays = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}
        tensors = {name: ("Q4_0" if array.ndim == 2 else "F32", array) for name, array in arrays.items()}
        tensors |= {name: ("F32", array) for name, array in extra.items()}
        metadata = {**METADATA, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e4}
        return open_checkpoint(write_gguf(tensors, metadata))

    return write


def program_of(checkpoint: Checkpoint) -> Program:
    shapes = {name: header.shape for name, header in checkpoint.headers.items()}
    return registry.program_for(ModelConfig.from_gguf(checkpoint.config, shapes, checkpoint.rope_factors()))


def frequencies(program: Program) -> tuple[float, ...]:
    return next(op for op in program.ops if op.kind == "rope_angles").attrs["inv_freq"]


def test_tied_llama_with_rope_factors(llama):
    """T32: the factors divide the frequencies; the head is the embedding."""
    factors = np.linspace(1, 8, SIZE // 2, dtype=np.float32)
    plain, checkpoint = program_of(llama()), llama(**{"rope_freqs.weight": factors})
    program = program_of(checkpoint)
    names = match(program.weights, checkpoint)
    assert set(names.values()) == set(SHAPES)
    assert np.allclose(frequencies(program), np.array(frequencies(plain)) / factors, rtol=1e-6)
    assert frequencies(program) != frequencies(plain)


def test_an_output_of_its_own_is_used(llama):
    checkpoint = llama(**{"output.weight": np.zeros((V, D), np.float32)})
    assert "output.weight" in match(program_of(checkpoint).weights, checkpoint).values()


def test_a_stray_tensor_is_refused(llama):
    checkpoint = llama(**{"blk.1.attn_q.weight": np.zeros((D, D), np.float32)})
    with pytest.raises(BadFileError, match=r"blk\.1\.attn_q\.weight"):
        match(program_of(checkpoint).weights, checkpoint)


def test_real_model(smollm2):
    checkpoint = open_checkpoint(smollm2)
    program = program_of(checkpoint)
    names = match(program.weights, checkpoint)
    assert sorted(names.values()) == sorted(checkpoint.headers)
    kinds = {checkpoint.kind_of(name) for name in names.values()}
    assert kinds == {"u4", "i8", "f32"} and checkpoint.notes == []
    for name, weight in program.weights.items():
        tensor = prepare(checkpoint.read(names[name]), weight.prep)
        assert tensor.shape == weight.shape and tensor.data.flags.c_contiguous
    checkpoint.close()
