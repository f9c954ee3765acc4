"""Every drafter there is, over models that they fit: right often, wrong often, with trees that branch.

    quiet      a Llama whose layers whisper (eagle_heads.py), with a tokenizer; heads are constructed or fitted to a
               plain run, lookups find what repeats, an n-gram model has counted the outputs
    latent     latent attention, and an index where it shares one, with one or several modules of its own that drafts
               fall to, all as quiet

A kind makes, of a world and a folder, what makes a drafter of a target. `adaptive`: how many drafts there are depends
on the pace of the machine.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tiny_model import write_tokenizer

from exactness import eagle_heads, families, heads
from exactness.recurrent_heads import LENGTH, write_recurrent
from octavo.drafters.draft_model import open_drafter
from octavo.drafters.eagle import Branching, EagleDrafter
from octavo.drafters.folder import HeadFolder
from octavo.drafters.heads import head_drafter
from octavo.drafters.medusa import MedusaDrafter
from octavo.drafters.mtp import ends_of, module_drafter
from octavo.drafters.ngram import NgramShelf
from octavo.drafters.ngram_lm import NgramModelShelf
from octavo.drafters.recurrent import RecurrentDrafter
from octavo.drafters.suffix import SuffixShelf
from octavo.drafters.text import TextDrafter
from octavo.models import draft
from octavo.models.registry import draft_modules
from octavo.train.ngram import counted
from octavo.train.ngram import write as write_ngrams
from octavo.weights.stated import tokenizer_of

VOCAB = eagle_heads.VOCAB
LATENT = {**families.LATENT, "vocab_size": VOCAB, "q_lora_rank": 40, "architectures": ["DeepseekV3ForCausalLM"]}
GLM = {
    **LATENT,
    "architectures": ["GlmMoeDsaForCausalLM"],
    "index_n_heads": 9,
    "index_head_dim": 48,
    "index_topk": 24,
    "indexer_types": ["full", "shared", "full"],
    "index_share_for_mtp_iteration": True,
}
WORLDS = {
    "quiet": None,
    "latent": LATENT | {"num_nextn_predict_layers": 1},
    "latent of two": LATENT | {"num_nextn_predict_layers": 2},
    "latent of three": LATENT | {"num_nextn_predict_layers": 3},
    "shared keys": GLM | {"num_nextn_predict_layers": 1},
}


@dataclass
class World:
    """model: its folder. outputs, states: of a plain run of what heads.asked() asks."""

    model: str
    tensors: dict
    run: object = None
    scores: object = None
    states: object = None

    @property
    def outputs(self):
        return self.run.outputs


def world(name, folder):
    folder.mkdir(exist_ok=True)
    if WORLDS[name] is None:
        made = World(*eagle_heads.write_model(folder))
    else:
        made = World(*write_latent(WORLDS[name], folder, name))
    made.run, made.scores, made.states = heads.plain_run(made.model)
    return made


def write_latent(config, folder, name):
    """A model and its modules, whose next token hangs mostly on the last one."""
    model = families.write(config, folder, name)
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: value for name, value in tensors.items() if "enorm" not in name}
    target, rng, d = heads.open_target(model), np.random.default_rng(3), config["hidden_size"]
    ends = ends_of(target, target.head_weight)
    written = draft.programs(draft_modules(target.model), ends)
    for program in written.values():
        for source, (shape, _) in families.shapes_of(program).items():
            for e in range(config["n_routed_experts"] if "{e}" in source else 1):
                values = rng.standard_normal(shape[1:] if "{e}" in source else shape)
                values = 1 + 0.2 * values if values.ndim == 1 else values * 1.5 / values.shape[-1] ** 0.5
                tensors.setdefault(source.replace("{e}", str(e)), values.astype(np.float32))
    for name, value in tensors.items():
        if any(part in name for part in ("o_proj.weight", "down_proj.weight")):
            value *= 0.04
        elif "eh_proj" in name:
            value *= 0.04
            value[:, :d] += np.eye(d, dtype=np.float32)
        elif (
            (name.endswith(("norm.weight", "enorm.weight")) and ".layers." not in name)
            or "enorm" in name
            or "shared_head" in name
        ):
            value[:] = 1
    tensors["lm_head.weight"] *= 1.6
    tensors["model.embed_tokens.weight"] *= 3.0
    save_file(tensors, folder / "model.safetensors")
    write_tokenizer(folder)
    return model, tensors


def noisy(made, folder):
    """The model, a little off."""
    shutil.copytree(made.model, folder, dirs_exist_ok=True)
    rng = np.random.default_rng(3)
    save_file(
        {
            name: (value + 0.06 * value.std() * rng.standard_normal(value.shape)).astype(np.float32)
            for name, value in made.tensors.items()
        },
        Path(folder) / "model.safetensors",
    )
    return lambda target: open_drafter(str(folder), target, adaptive=False)


def ngrams(made, folder):
    """Counts the outputs: what stands behind three of their tokens stands once."""
    ids = np.array([token for output in made.outputs.values() for token in output], np.int64)
    tokenizer = tokenizer_of(heads.open_target(made.model).checkpoint)
    path = Path(folder) / "counts"
    write_ngrams(path, 3, tokenizer, *counted(ids, tokenizer.size, 3))
    return lambda target: TextDrafter(NgramModelShelf(str(path), target), adaptive=False)


def medusa(made, folder):
    heads.write_medusa(folder, made.outputs, made.states, VOCAB)
    return lambda target: MedusaDrafter(HeadFolder(folder, target), target, adaptive=False)


def recurrent(**config):
    def make(made, folder):
        embedding = made.tensors["model.embed_tokens.weight"]
        write_recurrent(folder, embedding, made.outputs, made.states, {"beam_length": LENGTH, **config})
        return lambda target: RecurrentDrafter(HeadFolder(folder, target), target, adaptive=False)

    return make


def eagle(generation, branching, **more):
    def make(made, folder):
        eagle_heads.write(folder, *getattr(eagle_heads, generation)(made.tensors, **more))
        return lambda target: EagleDrafter(HeadFolder(folder, target), target, branching, adaptive=False)

    return make


def apart(made, folder):
    """A layer that adds nothing behind the target, and the target's own head over the next token's embedding."""
    width, layers = eagle_heads.WIDTH, eagle_heads.CONFIG["num_hidden_layers"]
    at, ones = f"model.layers.{layers}", np.ones(width, np.float32)
    tensors = eagle_heads.layer(at, eaten=width, **{"input_layernorm.weight": ones})
    join = np.concatenate((np.eye(width), np.zeros((width, width))), axis=1).astype(np.float32)
    tensors |= {f"{at}.enorm.weight": ones, f"{at}.hnorm.weight": ones, f"{at}.eh_proj.weight": join}
    tensors[f"{at}.shared_head.norm.weight"] = made.tensors["model.norm.weight"]
    tensors[f"{at}.shared_head.head.weight"] = made.tensors["lm_head.weight"]
    size = {"num_hidden_layers": layers, "num_nextn_predict_layers": 1, "model_type": "mtp"}
    eagle_heads.write(folder, eagle_heads.stated(architectures=["MTPModel"]) | size, tensors)
    return lambda target: head_drafter(str(folder), target, adaptive=False)


@dataclass(frozen=True)
class Kind:
    make: Callable
    world: str = "quiet"
    branches: bool = False
    adaptive: bool = False
    deep: float = 0.2  # at least such a share of the steps with drafts takes two or more of them
    blocks: int = 24  # so few that some of what heads.asked() asks is in the way of the rest


def lookup(shelf, **options):
    return lambda made, folder: lambda target: TextDrafter(shelf(), **options)


def module(made, folder):
    return lambda target: module_drafter(target, adaptive=False)


TREE, CHAIN = Branching(depth=4, width=3, nodes=10), Branching(depth=5, width=1, nodes=5)
KINDS = {
    "ngram": Kind(lookup(NgramShelf, adaptive=False)),
    "suffix": Kind(lookup(SuffixShelf, adaptive=False)),
    "auto": Kind(lookup(SuffixShelf), adaptive=True),
    "ngramlm": Kind(ngrams),
    "model": Kind(noisy),
    "medusa": Kind(medusa, branches=True),
    "recurrent, a tree": Kind(recurrent(rnn=True, beam_width=4), branches=True),
    "recurrent, a chain": Kind(recurrent(rnn=False, beam_width=1)),
    "eagle1, a tree": Kind(eagle("eagle1", TREE), branches=True),
    "eagle3, a tree": Kind(eagle("eagle3", TREE), branches=True),
    "eagle3, a chain": Kind(eagle("eagle3", CHAIN), deep=0.1),
    "eagle3, some tokens": Kind(eagle("eagle3", TREE, kept=range(0, VOCAB, 2)), branches=True, deep=0.03),
    "mtp apart": Kind(apart),
    "mtp": Kind(module, "latent"),
    "two mtp layers": Kind(module, "latent of two"),
    "three mtp layers": Kind(module, "latent of three"),
    "mtp with shared keys": Kind(module, "shared keys"),
}
