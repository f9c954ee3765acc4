"""Folders of draft heads: which kind they are, and one line for those that are none. Trees worth their rows."""

import itertools
import json

import numpy as np
import pytest
from drafters.test_medusa import CONFIG, random_tensors
from exactness import heads
from exactness.models import write_odd

from octavo.drafters.heads import head_drafter
from octavo.drafters.likely import in_order, likeliest
from octavo.drafters.medusa import MedusaDrafter
from octavo.drafters.port import Proposal
from octavo.drafters.tree import Tree, TreeWorth, grow, proposal
from octavo.errors import BadFileError, ConfigError, MissingFileError, PolicyError
from octavo.request import Request, SamplingParams
from octavo.sampling.sampler import Sampler, SampleRow


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return heads.open_target(write_odd(tmp_path_factory.mktemp("odd")))


@pytest.mark.parametrize("names", [["MedusaModel"], ["LlamaMedusaForCausalLM"], None])
def test_the_kind_is_read_off_the_configuration(target, tmp_path, names):
    folder = heads.write(tmp_path / "head", CONFIG | {"architectures": names}, random_tensors())
    assert isinstance(head_drafter(str(folder), target), MedusaDrafter)


def test_what_is_no_head_is_refused_in_one_line(target, tmp_path):
    def refused(error, *words):
        with pytest.raises(error) as raised:
            head_drafter(str(folder), target)
        message = raised.value.message
        assert all(word in message for word in words) and str(folder) in message and "\n" not in message

    folder = tmp_path / "nowhere"
    refused(MissingFileError, "no such draft head")
    folder.mkdir()
    refused(MissingFileError, "neither a GGUF file nor safetensors")
    (folder / "medusa_lm_head.pt").write_bytes(b"\x80\x02")
    refused(PolicyError, "medusa_lm_head.pt is a pickle", "safetensors.torch.save_file")
    heads.write(folder, {"architectures": ["LlamaForCausalLM"]}, random_tensors())
    refused(ConfigError, "architectures 'LlamaForCausalLM' is none of the draft heads known: Medusa")
    heads.write(folder, {"hidden_size": 3}, random_tensors())
    refused(ConfigError, "names no architecture")
    (folder / "config.json").write_text("{")
    refused(ConfigError, "not valid JSON")
    (folder / "config.json").unlink()
    refused(MissingFileError, "config.json: no such file")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    refused(BadFileError, "model.safetensors")


def test_trees_hold_the_likeliest_paths():
    """Against all paths sorted by their products."""
    accuracies = [[0.6, 0.2, 0.1], [0.5, 0.3, 0.05], [0.4, 0.3, 0.2]]
    every = {}
    for depth in (1, 2, 3):
        for path in itertools.product(range(3), repeat=depth):
            every[path] = np.prod([accuracies[at][rank] for at, rank in enumerate(path)])
    nodes = grow(accuracies, 12)
    paths = []
    for node in nodes:
        paths.append((*paths[node.parent], node.rank) if node.parent >= 0 else (node.rank,))
        assert node.chance == pytest.approx(every[paths[-1]]) and node.depth == len(paths[-1]) - 1
    assert sorted(every[path] for path in paths) == pytest.approx(sorted(every.values())[-12:])
    assert len(set(paths)) == 12
    assert len(grow([[0.5]], 12)) == 1
    assert grow(accuracies, 12, 0.1) == [node for node in nodes if node.chance > 0.1] != nodes
    chain = grow([[0.9], [0.8], [0.7]], 12)
    assert [node.parent for node in chain] == [-1, 0, 1]


def test_a_tree_that_never_branches_is_a_chain():
    assert proposal(Tree([5, 6, 7], [-1, 0, 1])) == Proposal((5, 6, 7))
    assert proposal(Tree([5, 6, 7], [-1, 0, 0])) == Proposal((5, 6, 7), (-1, 0, 0))
    assert proposal(Tree([5, 6], [-1, -1])).parents == (-1, -1) and proposal(Tree()) == Proposal()


class Session:
    """So many seconds a step of `rows`, and a row more."""

    def __init__(self, plain, row, rows=1):
        self.given = plain, row, rows

    def seconds(self, rows):
        plain, row, base = self.given
        return plain + row * (rows - base) if plain else 0.0


def test_nodes_stop_where_rows_cost_more_than_they_bring():
    worth = TreeWorth()
    assert worth.least("a", 1, Session(0.0, 0.0)) == 0 and worth.asks(1, Session(0.0, 0.0)), "nothing is known yet"
    assert worth.least("a", 1, Session(1.0, 0.1)) == pytest.approx(0.115)
    assert worth.least("a", 8, Session(1.0, 0.1, 8)) == pytest.approx(0.92)
    for _ in range(20):
        worth.proposed("a", [0.5, 0.3])
        worth.hear("a", 2, 0)
    least = worth.least("a", 1, Session(1.0, 0.1))
    assert least > 0.5, "what was promised did not come"
    assert 0.115 < worth.least("b", 1, Session(1.0, 0.1)) < least, "others are believed less too, but not as little"
    for _ in range(400):
        worth.hear("a", 0, 0)
    assert worth.least("a", 1, Session(1.0, 0.1)) < 0.2, "it is tried again after a while"
    assert TreeWorth(adaptive=False).least("a", 64, Session(1.0, 9.0)) == 0


class Pairs(Session):
    """Rows are computed in pairs: every second one is free."""

    def seconds(self, rows):
        return 1.0 + 0.4 * ((rows - 1) // 2)


def test_a_tree_has_as_many_nodes_as_make_the_most_tokens_a_second():
    tree = Tree([5, 6, 7, 8], [-1, -1, 0, 2], [0.3, 0.25, 0.2, 0.15])
    line_first = Tree([5, 7, 8, 6], [-1, 0, 1, -1], [0.3, 0.2, 0.15, 0.25])
    worth = TreeWorth()
    assert worth.best([("a", tree)], 1, Session(1.0, 0.0)) == [line_first]
    assert worth.best([("a", tree)], 1, Session(0.0, 0.0)) == [line_first], "nothing is known yet"
    assert worth.best([("a", tree)], 1, Pairs(1.0, 0.0)) == [Tree([5], [-1], [0.3])], "the second row is free"
    assert worth.best([("a", tree)], 1, Session(1.0, 0.5)) == [Tree([], [], [])]
    assert worth.best([("a", tree)], 1, Session(1.0, 0.17)) == [Tree([5, 7, 6], [-1, 0, -1], [0.3, 0.2, 0.25])]
    two = worth.best([("a", tree), ("b", Tree([9], [-1], [0.9]))], 2, Pairs(1.0, 0.0))
    assert two == [Tree([5], [-1], [0.3]), Tree([9], [-1], [0.9])], "they share a pair of rows"
    for _ in range(20):
        worth.proposed("a", [0.9])
        worth.hear("a", 1, 0)
    assert worth.best([("a", tree)], 1, Session(1.0, 0.1)) == [Tree([], [], [])], "what was promised did not come"


def test_nodes_that_were_drawn_stay_whatever_they_are():
    tree, worth = Tree([5, 6], [-1, -1], [0.3, 0.01], [{5: 0.3, 6: 0.01}] * 2), TreeWorth()
    assert worth.best([("a", tree)], 1, Session(1.0, 0.5)) == [tree]


def test_proposals_that_cost_more_than_they_bring_are_not_made():
    worth, session = TreeWorth(), Session(1.0, 0.02)
    worth.took(0.1)
    assert worth.asks(1, session)
    for _ in range(90):
        worth.proposed("a", [0.5, 0.3])
        worth.hear("a", 2, 0)
    assert not worth.asks(1, session)
    asked = [worth.asks(1, session) for _ in range(200)]
    assert any(asked), "and are tried again after a while"
    slow, tries = TreeWorth(), 0
    slow.took(3.0)
    for _ in range(1000):
        if slow.asks(1, session):
            tries += 1
            slow.took(3.0)
    assert 0 < tries < 10, "a drafter that is slower than the model does not pay, and may have had a slow moment"


def test_a_slow_moment_of_a_drafter_is_no_reason_to_stand_back():
    worth, session = TreeWorth(), Session(1.0, 0.02)
    for seconds in (30.0, 0.01, 0.01, 50.0):
        worth.took(seconds)
        assert worth.asks(1, session)


def test_the_noise_of_a_request_decides_as_it_will_for_the_target():
    """With the target's own logits, the first choice is what the sampler takes."""
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((40, 64)) * 2).astype(np.float32)
    sampler = Sampler(64)
    for params in (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.3, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.1, top_k=20, top_p=0.9),
    ):
        request = Request("r", (1, 2), params, seed=11)
        sampler.forget("r")
        rows = [SampleRow(request, row, 7 + row) for row in range(40)]
        wanted = [sample.token_id for sample in sampler.sample(logits, rows)]
        choices = likeliest(logits, range(40), 64)
        found = [in_order(choices[row], request, 7 + row, range(64))[0][0] for row in range(40)]
        assert found == wanted
        assert len(set(wanted)) > 10
