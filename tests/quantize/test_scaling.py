"""Columns scaled up and what stands before them down: the model stays the same, in every family's order of norms."""

import json

import numpy as np
import pytest
import torch
from models import tiny
from safetensors.torch import save_file
from stepping import Stepper
from tiny_model import write_tokenizer

from octavo.backends import executor_for
from octavo.quantize.calibrated import Awq, SmoothQuant
from octavo.quantize.calibration import walk
from octavo.quantize.layers import sharings
from octavo.quantize.subject import Subject
from octavo.weights.kinds import Tensor

RULES = {
    "llama": {"norm", "rows"},
    "llama-biased": {"norm", "rows"},
    "mistral-window": {"norm", "rows"},
    "qwen3": {"norm", "rows"},
    "gemma": {"offset", "rows"},
    "gemma3": {"offset", "rows"},
    "olmo2": {"rows", "none"},
}


def write_member(folder, member):
    model, mapping = tiny.twin(member)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(mapping))
    tied = mapping.get("tie_word_embeddings", False)
    tensors = {name: each.contiguous() for name, each in model.state_dict().items() if not (tied and "lm_head" in name)}
    save_file(tensors, folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


class Unrounded:
    """Scales as its class does, and keeps the scaled matrices as they are."""

    def __init__(self, subject, shared):
        self.kept = {}
        super().__init__(subject, shared, self, 16, lambda done, total: None)

    def change(self, name, values):
        [weight] = [weight for weight, source in self.subject.sources.items() if source == name]
        self.kept[weight] = values

    def round(self, name, weight, sample, plain):
        assert 0 < plain < 1
        self.kept[name] = weight


@pytest.mark.parametrize("way", [Awq, SmoothQuant])
@pytest.mark.parametrize("member", RULES)
def test_scaled_models_answer_the_same(member, way, tmp_path):
    class Way(Unrounded, way):
        pass

    subject = Subject(write_member(tmp_path / "in", member))
    shared = sharings(subject, way.scheme)
    rules = {one.rule for one in shared.values()} - {"none"}
    assert rules == RULES[member] - ({"none"} if way is Awq else {"none", "rows"})
    rounder = Way(subject, shared)
    prompts = [tuple(tiny.prompt_of(24, seed)) for seed in range(3)]
    walk(subject, prompts, rounder.weight, rounder.watch)
    assert {*subject.matrices} <= {*rounder.kept}

    def logits(changed):
        held = {name: changed.get(name, subject.values(name)).numpy() for name in subject.program.weights}
        tensors = {name: Tensor("f32", each.shape, np.ascontiguousarray(each)) for name, each in held.items()}
        return Stepper(executor_for("reference", "float32"), subject.program, tensors).prompt(prompts[0])

    before, after = logits({}), logits(rounder.kept)
    moved = max(float((rounder.kept[name] / subject.values(name) - 1).abs().median()) for name in subject.matrices)
    assert rules == set() or moved > 0.05
    assert np.abs(after - before).max() < 1e-3 * np.abs(before).max()
    subject.close()


def test_the_walk_sees_what_transformers_computes(tmp_path):
    """Values that the last matrix of a layer eats, over several windows at once."""
    model, _ = tiny.twin("llama")
    subject = Subject(write_member(tmp_path / "in", "llama"))
    seen, wanted = {}, []
    prompts = [tuple(tiny.prompt_of(length, length)) for length in (20, 9, 33)]
    walk(subject, prompts, subject.values, lambda op, ins: seen.update({op.outs[0]: ins[0]} if op.outs else {}))
    layer = model.model.layers[2].mlp.down_proj
    hook = layer.register_forward_pre_hook(lambda module, args: wanted.append(args[0][0]))
    with torch.no_grad():
        for prompt in prompts:
            model(torch.tensor([prompt]))
    hook.remove()
    assert torch.allclose(seen["2.d"], torch.cat(wanted), atol=1e-4)
    subject.close()
