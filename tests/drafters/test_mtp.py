"""The module that drafts in a model's own checkpoint: its logits beside plain torch, its drafts, the bits with them."""

import json
import shutil

import numpy as np
import pytest
from drafters.mtp_models import APART, MEMBERS, Oracle
from exactness.harness import House, check, prompts, request, subjects
from exactness.test_exactness import fresh
from models.tiny import SIZES
from tiny_model import write_model

from octavo.drafters import kinds
from octavo.drafters.heads import head_drafter
from octavo.drafters.mtp import MOST, module_drafter
from octavo.errors import ConfigError

VOCAB = SIZES["vocab_size"]


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """As many drafts as there may be, whatever they cost: the pace of a test's machine decides nothing."""
    monkeypatch.setitem(kinds.KINDS, "mtp", lambda name, target: module_drafter(target, adaptive=False))
    monkeypatch.setitem(kinds.KINDS, "head", lambda path, target: head_drafter(path, target, adaptive=False))


class Watched(House):
    """Keeps the module's logits: (tokens, drafts before) -> row."""

    def __init__(self, model, **options):
        defaults = {"speculate": "mtp", "max_model_len": 256, "threads": 1, "num_blocks": 200}
        super().__init__(model, **{**defaults, **options})
        self.drafted = {}
        drafter = self.parts.runner._drafter._inner
        shadows = drafter._shadows
        choose = shadows.choose

        def watched(logits, rows):
            values = self.parts.runner.view(f"{drafter._named(len(rows[0][2]))}.logits")
            for place, row, drafts in rows:
                known = (*row.request.prompt_ids, *row.request.output_ids, *row.result.token_ids)
                self.drafted[known, tuple(drafts)] = np.array(values[place])
            return choose(logits, rows)

        shadows.choose = watched


SHAPES = {member: {"member": member} for member in MEMBERS} | {
    "two modules": {"member": "deepseek-v3", "modules": 2},
    "three modules, an index each": {"member": "glm-dsa", "modules": 3},
    "one index for all drafts": {"member": "glm-dsa", "shares": True},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_parity_with_plain_torch(shape, tmp_path):
    """The first draft and those behind it, of prompts in chunks, of texts longer than an index chooses from."""
    oracle = Oracle(**SHAPES[shape])
    house = Watched(oracle.write(tmp_path), executor="reference", dtype="float32", max_num_batched_tokens=24)
    house.run([request(f"p{i}", p, tokens=8) for i, p in enumerate(prompts(VOCAB, (3, 17, 40)))])
    house.close()
    assert {len(drafts) for _, drafts in house.drafted} >= {0, 1, 2, 3, 4, 5}
    far = 0.0
    for (tokens, drafts), row in house.drafted.items():
        want = oracle.logits(list(tokens), list(drafts))
        far = max(far, float(np.abs(row - want).max() / np.ptp(want)))
    assert far < 2e-4


def test_parity_of_a_module_that_was_trained_apart(tmp_path):
    """A Llama's layer behind a Llama, over a vocabulary of its own."""
    oracle = Oracle("llama")
    target, head = tmp_path / "target", tmp_path / "head"
    for folder in (target, head):
        folder.mkdir()
    path, own = oracle.write_apart(head), oracle.own
    oracle.own, oracle.mapping["num_nextn_predict_layers"] = {}, 0
    oracle.write(target)
    options = {"executor": "reference", "dtype": "float32", "max_num_batched_tokens": 24}
    house = Watched(str(target), speculate=f"head:{path}", **options)
    house.run([request(f"p{i}", p, tokens=6, temperature=i * 0.5) for i, p in enumerate(prompts(VOCAB, (3, 17, 40)))])
    house.close()
    assert len(own) == 13 and {len(drafts) for _, drafts in house.drafted} >= {0, 1, 2, 3}
    for (tokens, drafts), row in house.drafted.items():
        want = oracle.logits(list(tokens), list(drafts))
        assert row.shape == (APART,) and np.abs(row - want).max() < 2e-4 * np.ptp(want)
        assert all(draft % 3 == 0 for draft in drafts)


@pytest.mark.parametrize("condition", ["poisoned blocks", "chunks", "preemption"])
def test_same_bits_with_a_module_that_was_trained_apart(tmp_path, condition):
    oracle = Oracle("llama", agreeing=True)
    target, head = tmp_path / "target", tmp_path / "head"
    for folder in (target, head):
        folder.mkdir()
    path = oracle.write_apart(head)
    oracle.own, oracle.mapping["num_nextn_predict_layers"] = {}, 0
    oracle.write(target)
    plain = House(str(target), threads=1, max_model_len=256)
    said = plain.run(chosen())
    plain.close()
    house = Watched(str(target), speculate=f"head:{path}", **CONDITIONS[condition])
    run = house.run(chosen())
    again = house.run(fresh(chosen()))
    house.close()
    check(run, said)
    check(again, said)
    assert run.stats["drafts_accepted"] > 10 and run.stats["drafts_rejected"] > 10


@pytest.fixture(scope="module", params=[*MEMBERS, "three modules, an index each"])
def agreeing(request, tmp_path_factory):
    return Oracle(agreeing=True, **SHAPES[request.param]).write(tmp_path_factory.mktemp("agreeing"))


@pytest.fixture(scope="module")
def plain(agreeing):
    house = House(agreeing, enable_prefix_caching=False, threads=1, max_model_len=256)
    runs = [house.run([each]) for each in chosen()]
    house.close()
    for run in runs[1:]:
        runs[0].outputs |= run.outputs
        runs[0].rows |= run.rows
    return runs[0]


def chosen():
    wide = {"repetition_penalty": 1.1, "presence_penalty": 0.3, "logprobs": 2, "temperature": 0.7}
    more = [request(f"w{i}", p, tokens=24, seed=i, **wide) for i, p in enumerate(prompts(VOCAB, (9, 33), seed=4))]
    return [*subjects(VOCAB, tokens=24), *more]


CONDITIONS = {
    "poisoned blocks": {"poison": True},
    "chunks": {"max_num_batched_tokens": 23, "poison": True},
    "preemption": {"num_blocks": 14, "poison": True},
    "two plans": {"plans_outstanding": 2, "max_num_batched_tokens": 40},
    "few rows": {"max_logit_rows": 5},
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_same_bits(agreeing, plain, condition):
    house = Watched(agreeing, **CONDITIONS[condition])
    first = house.run(chosen())
    again = house.run(fresh(chosen()))
    house.close()
    check(first, plain)
    check(again, plain)
    for run in (first, again):
        deep = house.parts.scheduler.stats.accepted_at
        assert run.stats["drafts_accepted"] > 20 and run.stats["drafts_rejected"] > 20
    steps = house.parts.scheduler.stats.draft_steps
    assert condition == "few rows" or deep[1] >= 0.2 * steps, f"{deep} of {steps}"
    assert condition != "preemption" or first.stats["preemptions"] > 0
    assert condition in ("preemption",) or again.stats["hits"] > 0


def test_drafts_are_a_function_of_the_text(agreeing, plain):
    """Where nothing is hit, what the module says depends on no chunk, mate, preemption or earlier draft."""
    said = []
    for options in ({}, {"max_num_batched_tokens": 19}, {"num_blocks": 14}):
        house = Watched(agreeing, enable_prefix_caching=False, poison=True, **options)
        house.run(chosen())
        house.close()
        said.append({tokens: row.tobytes() for (tokens, drafts), row in house.drafted.items() if not drafts})
    common = said[0].keys() & said[1].keys() & said[2].keys()
    assert len(common) > 40
    assert all(said[0][tokens] == said[1][tokens] == said[2][tokens] for tokens in common)


def test_a_draft_ends_with_the_request(agreeing, plain):
    house = Watched(agreeing)
    [prompt] = prompts(VOCAB, [20], seed=2)
    for tokens in (1, 2, 3):
        run = house.run([request("a", prompt, tokens=tokens)])
        assert run.stats["drafts_accepted"] + run.stats["drafts_rejected"] <= max(0, tokens - 2) * MOST
    house.close()


def test_a_model_without_such_a_module_is_refused(tmp_path):
    path = write_model(tmp_path / "tiny")
    with pytest.raises(ConfigError, match="has no module that drafts"):
        House(path, speculate="mtp")
    bare = tmp_path / "bare"
    bare.mkdir()
    oracle = Oracle("deepseek-v3")
    oracle.own, oracle.mapping["num_nextn_predict_layers"] = {}, 0
    oracle.write(bare)
    with pytest.raises(ConfigError, match="no layer that drafts"):
        House(str(bare), speculate="mtp", max_model_len=256)
    shutil.copytree(bare, tmp_path / "stated")
    (tmp_path / "stated" / "config.json").write_text(json.dumps(oracle.mapping | {"num_nextn_predict_layers": 1}))
    with pytest.raises(ConfigError, match="has no module that drafts"):
        House(str(tmp_path / "stated"), speculate="mtp", max_model_len=256)
