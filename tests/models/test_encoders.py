"""Encoders against transformers on a tiny random BERT: states, pooled vectors, files, and that each part matters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from stepping import Run, Stepper
from tiny import as_values, prompt_of, tensors_of

from octavo.backends import executor_for
from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.pooling import Pooling, causal, embeds, pooled
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.kinds import Tensor
from octavo.weights.match import match

TOLERANCE = 1e-4
SIZES = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "type_vocab_size": 2,
}
TOKENS = prompt_of(60, seed=4)
ACTS = ["gelu", "gelu_new"]


@pytest.fixture(scope="module", params=ACTS)
def twin(request):
    config = transformers.BertConfig(**SIZES, hidden_act=request.param, attn_implementation="eager")
    torch.manual_seed(5)
    model = transformers.BertModel(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(as_values(name, weight.shape))
    return model, {**config.to_dict(), "architectures": ["BertModel"]}


def states(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).last_hidden_state[0].numpy()


def runs(program, tensors, *tokens, dtype="auto", executor="reference"):
    """The export of one step over these requests."""
    stepper = Stepper(executor_for(executor, dtype), program, tensors)
    return stepper.step(*[Run(slot, 0, tuple(ids)) for slot, ids in enumerate(tokens)])


def plain(mapping):
    return program_for(ModelConfig.from_mapping(mapping))


def test_states_equal_those_of_transformers(twin):
    model, mapping = twin
    program = plain(mapping)
    assert embeds(program) and not causal(program)
    got = runs(program, tensors_of(model, program), TOKENS, TOKENS[:17])
    assert states(model, TOKENS).std() >= 0.5
    assert np.abs(got[:60] - states(model, TOKENS)).max() <= TOLERANCE
    assert np.abs(got[60:] - states(model, TOKENS[:17])).max() <= TOLERANCE


@pytest.mark.parametrize("mode", ["mean", "cls", "last"])
@pytest.mark.parametrize("unit", [True, False])
def test_pooled(twin, mode, unit):
    model, mapping = twin
    program = pooled(plain(mapping), Pooling(mode, unit, True))
    want = [states(model, ids) for ids in (TOKENS, TOKENS[:9])]
    want = np.stack([{"mean": h.mean(0), "cls": h[0], "last": h[-1]}[mode] for h in want])
    if unit:
        want /= np.linalg.norm(want, axis=1, keepdims=True)
    got = runs(program, tensors_of(model, program), TOKENS, TOKENS[:9])
    assert got.shape == want.shape and np.abs(got - want).max() <= TOLERANCE


def test_natively_as_near_as_the_rounding_allows(twin):
    model, mapping = twin
    program = plain(mapping)
    tensors = tensors_of(model, program)
    want = runs(program, tensors, TOKENS, TOKENS[:17])
    rounded = runs(program, tensors, TOKENS, TOKENS[:17], dtype="bfloat16")
    held = {n: t if len(t.shape) == 1 or program.weights[n].plain else as_bf16(t) for n, t in tensors.items()}
    got = runs(program, held, TOKENS, TOKENS[:17], executor="native")
    assert 0 < np.abs(got - want).mean() <= 3 * np.abs(rounded - want).mean() + 0.01 * want.std()


def as_bf16(tensor):
    bits = torch.from_numpy(tensor.data).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return Tensor("bf16", tensor.shape, bits)


@pytest.mark.parametrize(
    "part", ["positions", "type", "embed_norm.bias", "1.attn_norm", "1.ffn_norm.bias", "2.up.b", "0.q.b", "causal"]
)
def test_every_part_matters(twin, part):
    model, mapping = twin
    program = plain(mapping)
    tensors = tensors_of(model, program)
    if part == "causal":
        ops = [replace(op, attrs={**op.attrs, "causal": True}) if op.kind == "attention" else op for op in program.ops]
        program = replace(program, ops=tuple(ops))
    else:
        tensors[part] = replace(tensors[part], data=np.zeros_like(tensors[part].data))
    assert np.abs(runs(program, tensors, TOKENS) - states(model, TOKENS)).max() >= 100 * TOLERANCE


def test_saved_by_transformers(twin, tmp_path):
    """Without the first part of the names, with a pooler that nothing here computes."""
    model, _ = twin
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path, matrices="f32")
    program = plain(checkpoint.config)
    sources = match(program.weights, checkpoint)
    assert sources["embed"] == "embeddings.word_embeddings.weight" and "pooler.dense.weight" in checkpoint.headers
    tensors = {name: checkpoint.stored(source, program.weights[name].prep).read() for name, source in sources.items()}
    assert np.abs(runs(program, tensors, TOKENS) - states(model, TOKENS)).max() <= TOLERANCE


@pytest.mark.parametrize(
    ("field", "value"), [("is_decoder", True), ("position_embedding_type", "relative_key"), ("hidden_act", "relu")]
)
def test_what_is_not_computed_is_refused(twin, field, value):
    with pytest.raises(ConfigError, match=field) as caught:
        plain({**twin[1], field: value})
    assert caught.value.code == "unsupported"
