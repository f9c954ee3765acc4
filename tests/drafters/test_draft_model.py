"""A smaller model as drafter: the same bits under every condition; the target as its own drafter is always right, which
it is only while its caches are; what cannot draft is refused by name."""

import json
import shutil

import numpy as np
import pytest
from exactness.harness import House, check, company, prompts, request, subjects
from exactness.test_exactness import fresh
from safetensors.numpy import load_file, save_file
from tiny_model import CONFIG, VOCAB, random_tensors, write_model, write_tokenizer

from octavo import LLM, SamplingParams
from octavo.drafters import kinds
from octavo.drafters.draft_model import MOST, open_drafter
from octavo.errors import ConfigError, OctavoError, UsageError
from octavo.request import Structure

WIDE = {"temperature": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.4, "min_tokens": 4}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("target") / "model")


@pytest.fixture(scope="module")
def noisy(target, tmp_path_factory):
    """The target, a little off: right often, and not always."""
    folder = tmp_path_factory.mktemp("noisy") / "model"
    shutil.copytree(target, folder)
    rng = np.random.default_rng(3)
    tensors = load_file(folder / "model.safetensors")
    moved = {
        name: (value + 0.06 * value.std() * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in tensors.items()
    }
    save_file(moved, folder / "model.safetensors")
    return str(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Other sizes throughout, fewer rows of padding, windows in every layer."""
    folder = tmp_path_factory.mktemp("small") / "model"
    folder.mkdir()
    sizes = {"vocab_size": 267, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8}
    config = CONFIG | sizes | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 20}
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    save_file(random_tensors(config, 5), folder / "model.safetensors")
    return str(folder)


@pytest.fixture
def eager(monkeypatch):
    """As many drafts as there may be, whatever they cost: the pace of a test's machine decides nothing."""
    monkeypatch.setitem(kinds.KINDS, "model", lambda name, target: open_drafter(name, target, adaptive=False))


def requests():
    wide = [
        request(f"w{i}", prompt, tokens=30, seed=50 + i, logprobs=3, **WIDE)
        for i, prompt in enumerate(prompts(VOCAB - 16, (5, 40, 70), seed=4))
    ]
    return [*subjects(VOCAB - 16, tokens=28), *wide]


@pytest.fixture(scope="module")
def plain(target):
    house = House(target, enable_prefix_caching=False, threads=1)
    runs = [house.run([each]) for each in requests()]
    house.close()
    for run in runs[1:]:
        runs[0].outputs |= run.outputs
        runs[0].rows |= run.rows
    return runs[0]


POISONED = {"poison": True, "threads": 1}
CONDITIONS = {
    "poisoned blocks": POISONED,
    "two threads": {"poison": True, "threads": 2},
    "chunks": POISONED | {"max_num_batched_tokens": 19},
    "preemption": POISONED | {"num_blocks": 15},
    "large blocks": POISONED | {"block_tokens": 32, "num_blocks": 90},
    "two plans": POISONED | {"plans_outstanding": 2, "max_num_batched_tokens": 40},
    "few rows": {"max_logit_rows": 6, "threads": 1},
    "no hits": {"enable_prefix_caching": False, "threads": 1},
}
PAIRS = [("itself", condition) for condition in CONDITIONS] + [
    ("small", condition) for condition in ("poisoned blocks", "chunks", "preemption")
]


@pytest.mark.parametrize(("who", "condition"), PAIRS)
def test_same_bits(eager, target, small, plain, who, condition):
    """Of one that is right often and not always: exactness/test_drafters.py."""
    name = {"itself": target, "small": small}[who]
    house = House(target, speculate=f"model:{name}", **CONDITIONS[condition])
    first = house.run(requests())
    again = house.run([*fresh(requests()), *company(VOCAB - 16, 4, 3)])
    house.close()
    check(first, plain)
    check(again, plain, ids=plain.outputs)
    accepted = first.stats["drafts_accepted"] + again.stats["drafts_accepted"]
    rejected = first.stats["drafts_rejected"] + again.stats["drafts_rejected"]
    assert condition != "preemption" or first.stats["preemptions"] > 0
    assert condition != "chunks" or first.stats["chunks"] > 10
    assert condition in ("no hits", "preemption") or again.stats["hits"] > 5
    if who == "itself":
        assert rejected == 0 and accepted > 400, "a cache of the drafter's was wrong"
    else:
        assert rejected > 100


def test_blocks_of_those_that_want_no_drafts_are_right_for_the_drafter(eager, target, plain):
    """The first run proposes nothing, and fills the blocks that the second hits; nothing is rejected then either."""
    house = House(target, speculate=f"model:{target}", **POISONED)
    long = [request(f"l{i}", p, tokens=60, speculate=False) for i, p in enumerate(prompts(VOCAB - 16, (3, 50), seed=8))]
    silent = house.run(long)
    assert silent.stats["drafts_accepted"] == silent.stats["drafts_rejected"] == 0
    follow = [request(f"f{i}", (*each.prompt_ids, *silent.outputs[each.id], 7, 8)) for i, each in enumerate(long)]
    run = house.run(follow)
    assert run.stats["cached_tokens"] >= 48 + 96
    assert run.stats["drafts_rejected"] == 0 and run.stats["drafts_accepted"] > 12
    house.close()


def test_blocks_that_were_filled_anew_without_the_drafter_are_gone_over_again(eager, target):
    """First with drafts; then, the cache emptied and poisoned, without; what hits those blocks finds NaN in none."""
    house = House(target, speculate=f"model:{target}", **POISONED)
    [prompt] = prompts(VOCAB - 16, [70], seed=9)
    assert house.run([request("a", prompt, tokens=30)]).stats["drafts_rejected"] == 0
    for pool in house.parts.scheduler.ledger.pools:
        pool.forget(set(pool._by_key))
    house.poison()
    house.run([request("b", prompt, tokens=30, speculate=False)])
    run = house.run([request("c", prompt, tokens=30)])
    assert run.stats["cached_tokens"] >= 64
    assert run.stats["drafts_rejected"] == 0 and run.stats["drafts_accepted"] > 20
    house.close()


def test_a_long_prompt_is_gone_over_in_several_steps(eager, target):
    """The drafter comes late to a prompt of ten steps, and drafts once it has caught up, beside one that it knows."""
    house = House(target, speculate=f"model:{target}", max_num_batched_tokens=40, **POISONED)
    long, short = prompts(VOCAB - 16, [400, 5], seed=10)
    run = house.run([request("long", long, tokens=60), request("short", short, tokens=40)])
    house.close()
    assert run.stats["drafts_rejected"] == 0 and run.stats["drafts_accepted"] > 50
    assert run.stats["steps"] < 10 + 10 + 40


def test_forms_and_logprobs(eager, target, noisy):
    """Masks, forced tokens and stops beside drafts, bit for bit in what is told."""
    prompts = ["the cat", "a man in the other", "abc", "the the the"]
    params = [
        SamplingParams(
            temperature=0, max_tokens=40, structure=Structure("regex", "[abc ]{10,30}(end|over)"), logprobs=2
        ),
        SamplingParams(temperature=1.1, seed=5, max_tokens=24, structure=Structure("choice", '["the man", "another"]')),
        SamplingParams(temperature=0.7, seed=6, max_tokens=30, stop=("th", "q"), logprobs=1),
        SamplingParams(temperature=0, max_tokens=30, frequency_penalty=0.5, bad_words=("an",), min_tokens=20),
    ]
    said = []
    for speculate in ("off", f"model:{noisy}", f"model:{target}"):
        with LLM(target, speculate=speculate, threads=1, max_num_batched_tokens=64, max_model_len=256) as llm:
            outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
            said.append([(output.token_ids, output.logprobs, output.text, output.finish_reason) for output in outputs])
            assert (llm.stats().drafts_accepted > 10) == (speculate != "off")
    assert said[0] == said[1] == said[2]


def test_an_adaptive_drafter_steps_aside_and_keeps_its_caches(target, small, plain):
    """Its guesses are worth nothing where a row costs a fifth of a step: few are made. The bits stay."""
    house = House(target, speculate=f"model:{small}", **POISONED)
    house.parts.runner.seconds = lambda rows: 0.01 + 0.002 * rows
    runs = [house.run(fresh(requests())) for _ in range(3)]
    house.close()
    for run in runs:
        check(run, plain)
    assert runs[-1].stats["drafts_rejected"] < runs[-1].stats["steps"] * len(plain.outputs) / 2


def test_a_draft_ends_with_the_request(eager, target):
    """Nothing is drafted behind the last token but one, nor beyond what a request asks for."""
    house = House(target, speculate=f"model:{target}", threads=1)
    [prompt] = prompts(VOCAB - 16, [20], seed=2)
    for tokens, drafts in ((1, 0), (2, 0), (3, 1), (10, 8), (11, 8)):
        run = house.run([request("a", prompt, tokens=tokens)])
        assert run.stats["drafts_accepted"] == drafts == min(drafts, MOST)
    run = house.run([request("b", prompt, tokens=9, speculate=2)])
    assert (run.stats["drafts_accepted"], run.stats["steps"]) == (5, 4)
    house.close()


def test_weights_and_caches_of_both_models_are_counted(target):
    """The target as its own drafter has every weight twice, and every cache."""
    one, two = House(target), House(target, speculate=f"model:{target}")
    loaded = [house.parts.runner.loaded for house in (one, two)]
    assert loaded[1].weights_bytes == 2 * loaded[0].weights_bytes
    assert loaded[1].kv_bytes_per_token == 2 * loaded[0].kv_bytes_per_token
    assert loaded[1].groups[0].name == "full" and len(loaded[1].groups) == 1
    one.close()
    two.close()


def test_what_cannot_draft_is_refused_by_name(target, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(target, other)
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"er"', '"re"').replace('"Ġa"', '"aĠ"'))
    with pytest.raises((ConfigError, OctavoError)) as caught:
        House(target, speculate=f"model:{other}")
    assert "\n" not in str(caught.value)
    with pytest.raises(OctavoError, match="nowhere"):
        House(target, speculate="model:nowhere")
    with pytest.raises(UsageError, match="speculate 'model' is not one of"):
        House(target, speculate="model")
