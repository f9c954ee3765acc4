"""The recurrent drafter: its logits are the formulas', its beams those of a search by hand, and what does not fit is
refused."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from exactness import heads
from exactness.harness import House, request
from exactness.models import ODD, write_odd
from safetensors.numpy import load_file
from torch.nn.functional import silu

from octavo.drafters.folder import HeadFolder
from octavo.drafters.heads import head_drafter
from octavo.drafters.recurrent import RecurrentDrafter, tree
from octavo.drafters.tree import Tree, TreeWorth
from octavo.errors import BadFileError, ConfigError, OctavoError, UnsupportedError

WIDTH, VOCAB = ODD["hidden_size"], ODD["vocab_size"]
CONFIG = {"architectures": ["ReDrafterModel"], "num_draft_layers": 2, "beam_width": 3, "beam_length": 4}
KINDS = {
    "network": (True, None),
    "sum": (False, None),
    "projected": (True, 96),
}


def random_tensors(rnn=True, inner=None, vocab=VOCAB):
    rng = np.random.default_rng(4)

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    tensors = {}
    if rnn:
        tensors |= {"rnn_w.weight": 2 * matrix(WIDTH, WIDTH), "rnn_u.weight": matrix(WIDTH, WIDTH)}
        tensors["rnn_u.bias"] = matrix(1, WIDTH)[0]
    if inner:
        tensors |= {"input_proj.weight": matrix(inner, 2 * WIDTH), "input_proj.bias": matrix(1, inner)[0]}
    inner = inner or 2 * WIDTH
    for layer in range(2):
        tensors[f"lm_head.{layer}.linear.weight"] = matrix(inner, inner)
        tensors[f"lm_head.{layer}.linear.bias"] = matrix(1, inner)[0]
    tensors["lm_head.2.weight"] = 3 * matrix(vocab, inner)
    return tensors


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_odd(tmp_path_factory.mktemp("odd"))


class Formula:
    """In torch, token by token."""

    def __init__(self, tensors, model):
        self.w = {name: torch.from_numpy(array) for name, array in tensors.items()}
        self.embedding = torch.from_numpy(load_file(f"{model}/model.safetensors")["model.embed_tokens.weight"])

    def step(self, h, state, token):
        """(logits, state) of one more token."""
        w, e = self.w, self.embedding[token]
        if "rnn_w.weight" in w:
            state = silu(w["rnn_w.weight"] @ e + w["rnn_u.weight"] @ state + w["rnn_u.bias"])
        else:
            state = state + e
        x = torch.cat((h, state))
        if "input_proj.weight" in w:
            x = w["input_proj.weight"] @ x + w["input_proj.bias"]
        for layer in range(2):
            x = x + silu(w[f"lm_head.{layer}.linear.weight"] @ x + w[f"lm_head.{layer}.linear.bias"])
        return w["lm_head.2.weight"] @ x, state

    def search(self, h, token, width, length):
        """All paths that were beams of the greedy search."""
        beams, found = [(0.0, (), torch.zeros(WIDTH))], set()
        for _ in range(length):
            after = []
            for score, tokens, state in beams:
                logits, state = self.step(h, state, tokens[-1] if tokens else token)
                logprobs = logits.log_softmax(0)
                after += [
                    (score + float(logprobs[id]), (*tokens, int(id)), state)
                    for id in logprobs.argsort(descending=True)[:width]
                ]
            beams = sorted(after, key=lambda beam: -beam[0])[:width]
            found |= {tokens for _, tokens, _ in beams}
        return found


@pytest.mark.parametrize("executor", ["reference", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_beams_are_the_formulas(model, tmp_path, kind, executor):
    tensors = random_tensors(*KINDS[kind])
    folder = heads.write(tmp_path / "head", CONFIG | {"rnn": KINDS[kind][0]}, tensors)
    views = {"recurrent.first": [heads.STATE, "recurrent.first.logits"], "recurrent.next": ["recurrent.next.logits"]}
    options = {"executor": executor, "threads": 1}
    watched = heads.Watched(heads.open_head(RecurrentDrafter, folder, model, **options), views)
    proposed = []

    class Kept(heads.Watched):
        def propose(self, session, rows):
            found = self.inner.propose(session, rows)
            proposed.append(found)
            return found

    house = House(model, drafter=Kept(watched), **options)
    house.run([request(f"r{i}", range(3, 9 + i), tokens=5) for i in range(3)])
    house.close()
    formula, error = Formula(tensors, model), 0.0
    steps = [watched.seen[at : at + 4] for at in range(0, len(watched.seen), 4)]
    assert len(steps) == len(proposed) >= 2
    for runs, proposals in zip(steps, proposed, strict=True):
        _, tokens, sources, values = runs[0]
        states = [(torch.from_numpy(values[heads.STATE][row]), torch.zeros(WIDTH)) for row in sources]
        behind, before = 0, states
        for number, (_, tokens, sources, values) in enumerate(runs):
            if number:
                before = [states[row - behind] for row in sources]
                behind = len(proposals)
            logits = next(array for name, array in values.items() if name.endswith("logits"))
            found = [formula.step(h, state, token) for (h, state), token in zip(before, tokens, strict=True)]
            wanted = torch.stack([each for each, _ in found]).numpy()
            error = max(error, float(np.abs(logits - wanted).max() / np.abs(wanted).max()))
            states = [(h, state) for (h, _), (_, state) in zip(before, found, strict=True)]
        assert error < (1e-5 if executor == "reference" else 3e-2)
        if executor == "reference":
            _, tokens, sources, values = runs[0]
            for proposal, token, row in zip(proposals, tokens, sources, strict=True):
                assert spelled(proposal) == formula.search(torch.from_numpy(values[heads.STATE][row]), token, 3, 4)


def spelled(proposal):
    """The paths of a tree."""
    found = []
    parents = proposal.parents or range(-1, len(proposal.token_ids) - 1)
    for token, parent in zip(proposal.token_ids, parents, strict=True):
        found.append((*found[parent], token) if parent >= 0 else (token,))
    assert len(set(found)) == len(found), "beams that begin alike share nodes"
    return set(found)


def test_paths_become_one_tree_the_likeliest_first():
    chances = {(7,): 0.9, (7, 8): 0.8, (7, 5): 0.4, (7, 8, 9): 0.2, (7, 5, 9): 0.19, (7, 8, 3): 0.1}
    found = tree(chances, 0.0)
    tokens, parents, sorted_chances = found.tokens, found.parents, found.chances
    assert tokens == [7, 8, 5, 9, 9, 3] and parents == [-1, 0, 0, 1, 2, 1]
    assert sorted_chances == sorted(chances.values(), reverse=True)
    assert tree(chances, 0.3) == Tree([7, 8, 5], [-1, 0, 0], [0.9, 0.8, 0.4])
    assert tree({(1,): 1.0, (1, 1): 1.0}, 0.0) == Tree([1, 1], [-1, 0], [1.0, 1.0])


@pytest.mark.parametrize(("plain", "runs"), [(1e-9, 1), (1e9, 4)])
def test_beams_end_where_they_are_not_worth_another_run(model, tmp_path, monkeypatch, plain, runs):
    """Steps that take no time, and steps that take so much that any draft is worth a run; rows cost nothing."""
    folder = heads.write(tmp_path / "head", CONFIG | {"rnn": True}, random_tensors())
    target = heads.open_target(model)
    drafter = RecurrentDrafter(HeadFolder(folder, target), target)
    watched = heads.Watched(drafter, {"recurrent.first": []})
    house = House(model, drafter=watched, threads=1)
    monkeypatch.setattr("octavo.runner.runner.Runner.seconds", lambda runner, rows: plain)
    monkeypatch.setattr(TreeWorth, "asks", lambda worth, rows, session: True)
    house.run([request("r", range(3, 9), tokens=5)])
    house.close()
    firsts = [place for place, (name, *_) in enumerate(watched.seen) if name == "recurrent.first"]
    assert len(firsts) >= 2
    assert {end - begin for begin, end in pairwise([*firsts, len(watched.seen)])} == {runs}


def test_beams_narrow_where_a_step_has_few_rows(model, tmp_path):
    """16 requests and 40 rows of logits: two beams each."""
    folder = heads.write(tmp_path / "head", CONFIG | {"rnn": True}, random_tensors())
    drafter = heads.open_head(RecurrentDrafter, folder, model, max_logit_rows=40)
    watched = heads.Watched(drafter, {"recurrent.next": []})
    house = House(model, drafter=watched, threads=1, max_logit_rows=40)
    house.run([request(f"r{i}", range(3, 9 + i), tokens=3) for i in range(16)])
    house.close()
    ends = [len(tokens) for _, tokens, _, _ in watched.seen]
    assert 32 in ends and max(ends) <= 40


BROKEN = {
    "cell": ({"rnn": "gru"}, {}, UnsupportedError, "rnn 'gru'"),
    "unsaid": ({}, {}, UnsupportedError, "rnn None"),
    "layers": ({"rnn": True, "num_draft_layers": 3}, {}, BadFileError, "lacks lm_head.3.weight"),
    "blocks": ({"rnn": True, "num_draft_layers": None}, {}, ConfigError, "num_draft_layers must be"),
    "beams": ({"rnn": True, "beam_width": 99}, {}, ConfigError, "beam_width 99: at most"),
    "length": ({"rnn": True, "beam_length": 0}, {}, ConfigError, "beam_length must be"),
    "sum": ({"rnn": False}, {}, BadFileError, "holds rnn_u.bias"),
    "states": (
        {"rnn": True},
        {"lm_head.2.weight": np.ones((VOCAB, 130))},
        ConfigError,
        "hidden states of 58; the target's is 72",
    ),
    "embeddings": (
        {"rnn": True},
        {"rnn_w.weight": np.ones((WIDTH, 64))},
        ConfigError,
        "embeddings of 64; the target's",
    ),
    "vocabulary": (
        {"rnn": True},
        {"lm_head.2.weight": np.ones((500, 2 * WIDTH))},
        ConfigError,
        "a vocabulary of 500; the target's is 211",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_drafter_of_another_model_is_refused_in_one_line(model, tmp_path, name):
    config, tensors, error, words = BROKEN[name]
    whole = random_tensors() | {key: array.astype(np.float32) for key, array in tensors.items()}
    folder = heads.write(tmp_path / "head", CONFIG | config, whole)
    with pytest.raises(OctavoError) as raised:
        head_drafter(str(folder), heads.open_target(model))
    assert type(raised.value) is error
    assert words in raised.value.message and str(folder) in raised.value.message
    assert "\n" not in raised.value.message


def test_a_folder_without_an_architecture_is_known_by_its_fields(model, tmp_path):
    folder = heads.write(tmp_path / "head", CONFIG | {"rnn": True}, random_tensors())
    config = {name: value for name, value in (CONFIG | {"rnn": True}).items() if name != "architectures"}
    (folder / "config.json").write_text(json.dumps(config))
    assert isinstance(head_drafter(str(folder), heads.open_target(model)), RecurrentDrafter)
