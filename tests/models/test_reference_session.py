"""What a session promises, on the reference: requests side by side, trees of drafts, copies, no_write, stale blocks."""

import numpy as np
import pytest
from stepping import Run, header
from test_parity import TOLERANCE
from tiny import logits_of, prompt_of, stepper_of, tensors_of, twin

from octavo.backends import executor_for
from octavo.backends.port import Limits
from octavo.backends.reference.step import Step
from octavo.errors import EngineError, ResourceError, UnsupportedError
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.builder import Builder
from octavo.program.header import NUM_SCALARS
from octavo.program.lower import bind
from octavo.weights.kinds import Tensor


@pytest.fixture(scope="module")
def pair():
    return twin("qwen3")


def near(a, b):
    return np.abs(a - b).max() <= TOLERANCE


def test_requests_side_by_side(pair):
    """Chunks of one request, the prompt of another and a decode of a third in one step, in mixed slots."""
    stepper = stepper_of(*pair)
    prompts = [prompt_of(length, seed) for seed, length in enumerate((50, 20, 31))]
    want = [logits_of(pair[0], prompt) for prompt in prompts]
    stepper.step(Run(2, 0, tuple(prompts[0][:17])), Run(1, 0, tuple(prompts[2][:30])))
    got = stepper.step(
        Run(1, 30, (prompts[2][30],)), Run(3, 0, tuple(prompts[1]), 5), Run(2, 17, tuple(prompts[0][17:]), 10)
    )
    assert near(got, np.concatenate([want[2][30:], want[1][5:], want[0][27:]]))


def test_no_logit_rows_is_a_step_too(pair):
    stepper = stepper_of(*pair)
    tokens = prompt_of(12)
    assert stepper.step(Run(0, 0, tuple(tokens), 12)).shape == (0, 199)
    assert near(stepper.step(Run(0, 12, (5,))), logits_of(pair[0], [*tokens, 5])[12:])


@pytest.mark.parametrize("member", ["qwen3", "mistral-window"])
def test_a_tree_of_drafts_reads_its_own_path(member):
    """Two branches after the last token; the accepted one is moved by copies and decoding goes on."""
    model, mapping = twin(member)
    stepper = stepper_of(model, mapping)
    tokens = prompt_of(21, seed=5)
    stepper.prompt(tokens[:20])
    drafts = (30, 40, 31, 41, 42)
    parents = (-1, 0, 0, 1, 2, 4)  # 21st token -> 30 -> 31, 21st -> 40 -> 41 -> 42
    got = stepper.step(Run(0, 20, (tokens[20], *drafts), parents=parents))
    paths = [[], [30], [40], [30, 31], [40, 41], [40, 41, 42]]
    for row, path in zip(got, paths, strict=True):
        assert near(row, logits_of(model, tokens + path)[-1])
    moves = [(0, 22, 21), (0, 24, 22), (0, 25, 23)]
    after = stepper.step(Run(0, 24, (50,)), copies=moves)
    assert near(after[0], logits_of(model, [*tokens, 40, 41, 42, 50])[-1])


def test_no_write_computes_the_row_and_leaves_the_cache(pair):
    stepper = stepper_of(*pair)
    tokens = prompt_of(32, seed=6)
    want = stepper.prompt(tokens)
    before = stepper.session.cache_bytes().copy()
    got = stepper.step(Run(0, 31, (tokens[31],), no_write=(0,)))
    assert near(got, want[31:])
    other = stepper.step(Run(0, 31, (99,), no_write=(0,)))  # reads the key of the old token at its own place
    assert not near(other, want[31:])
    assert np.array_equal(before, stepper.session.cache_bytes())
    stepper.step(Run(0, 31, (99,)))
    assert not np.array_equal(before, stepper.session.cache_bytes())


@pytest.mark.parametrize("block_tokens", [1, 5, 16, 32])
def test_block_size_shows_nowhere(pair, block_tokens):
    tokens = prompt_of(70, seed=7)
    stepper = stepper_of(*pair, block_tokens=block_tokens)
    assert near(stepper.prompt(tokens, slot=3, chunk=9), logits_of(pair[0], tokens))


def test_blocks_behind_a_window_may_be_gone():
    """Entries wholly behind the window point at the null block, which holds NaN."""
    model, mapping = twin("mistral-window")
    tokens = prompt_of(60, seed=8)
    stepper = stepper_of(model, mapping, block_tokens=4)
    stepper.prompt(tokens[:40])
    stepper.tables = [0, 0, 0, 8, *[0] * 8]  # slot 0: tokens 0 .. 31 are freed; 32 stays visible to token 39
    stepper.session.cache_bytes()[0] = 0xFF
    got = stepper.step(Run(0, 40, tuple(tokens[40:])))
    assert near(got, logits_of(model, tokens)[40:])


def test_two_programs_share_the_session(pair):
    """A second program reads what the first exports; groups of both are one list by name."""
    model, mapping = pair
    plain = program_for(ModelConfig.from_mapping(mapping))
    b = Builder("draft")
    weight = b.weight("draft.w", (5, 199), hf="w", gguf="w")
    b.export(b.linear("draft.logits", b.feed("logits", 199), weight))
    rng = np.random.default_rng(0)
    tensors = tensors_of(model, plain)
    tensors["draft.w"] = Tensor("f32", (5, 199), rng.standard_normal((5, 199), dtype=np.float32))
    executor = executor_for("reference")
    programs = {
        "target": executor.lower(plain, dict.fromkeys(plain.weights, "f32")),
        "draft": bind(b.build(), {weight: "f32"}),
    }
    session = executor.open(programs, lambda: iter(tensors.items()), Limits(64, 64, 1, 64, 5, 16), threads=1)
    session.run("target", header([Run(0, 0, (3, 4, 5))], [0, 0, 0, 4, 1, 2, 3, 4]))
    logits = session.view("logits").copy()
    draft = header([Run(0, 0, (3, 4))])
    session.run("draft", draft)
    assert near(session.view("draft.logits"), logits[:2] @ tensors["draft.w"].data.T)
    assert np.array_equal(session.view("logits"), logits)
    assert executor.block_bytes(programs, 16) == session.cache_bytes().shape[1]


def test_what_is_refused(pair):
    with pytest.raises(UnsupportedError, match="cuda"):
        executor_for("cuda")
    with pytest.raises(UnsupportedError, match="float32"):
        executor_for("native", "float32")
    with pytest.raises(EngineError, match="does not fit"):
        Step.parse(header([Run(0, 0, (1, 2))])[:-1])
    words = header([Run(0, 0, (1, 2))])
    words[0] = 99
    with pytest.raises(EngineError, match="version 99"):
        Step.parse(words)
    assert len(words) > NUM_SCALARS
    model, mapping = pair
    plain = program_for(ModelConfig.from_mapping(mapping))
    tensors = tensors_of(model, plain)
    executor = executor_for("reference")
    program = executor.lower(plain, dict.fromkeys(plain.weights, "f32"))
    limits = Limits(64, 64, 1, 64, 5, 16)
    with pytest.raises(EngineError, match=r"0\.wq was not given"):
        executor.open({"a": program}, lambda: ((n, t) for n, t in tensors.items() if n != "0.wq"), limits, threads=1)
    wrong = {**tensors, "norm": Tensor("f32", (3,), np.zeros(3, np.float32))}
    with pytest.raises(EngineError, match="norm"):
        executor.open({"a": program}, lambda: iter(wrong.items()), limits, threads=1)


def test_an_executor_without_its_library_says_so(monkeypatch):
    monkeypatch.setattr("octavo.backends.find_spec", lambda name: None)
    with pytest.raises(ResourceError, match="torch"):
        executor_for("reference")
