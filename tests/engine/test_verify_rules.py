"""Other rules in a real engine: greedy text as ever; sampled text by its distribution, and the same whatever shares the
step; refusals by name."""

import numpy as np
import pytest
from engines import settle
from tiny_model import VOCAB
from toy_drafter import ToyDrafter, nothing

from octavo import SamplingParams
from octavo.drafters.port import Proposal
from octavo.errors import UnsupportedError
from octavo.request import Structure
from octavo.sampling.seeds import uniform

RULES = ("residual", "block", "typical")
LETTERS = (30, 31, 32, 33)
CHANCES = {30: 0.4, 31: 0.3, 32: 0.2, 33: 0.1}


def drawn(request, length, most=3):
    """A chain of draws from CHANCES."""
    tokens = []
    for place in range(most):
        at = uniform(request.seed, length, place, 77)
        for token, chance in CHANCES.items():
            tokens += [token] * (at >= 0 and at < chance)
            at -= chance
    return Proposal(tuple(tokens), (), (CHANCES,) * len(tokens))


def guessed(request, length):
    """A tree that nobody drew."""
    return Proposal((30, 31, 32, 33), (-1, -1, 0, 0))


PROMPTS = ["abc", "Hello the man", "a rather longer prompt, of more than one block of tokens"]


@pytest.mark.parametrize("rule", RULES)
def test_greedy_text_is_that_of_plain_decoding(make_llm, shared, rule):
    params = SamplingParams(temperature=0, max_tokens=20, allowed_token_ids=LETTERS, logprobs=1, ignore_eos=True)
    plain = [output.outputs[0].token_ids for output in shared.generate(PROMPTS, params, use_tqdm=False)]
    for script in (drawn, guessed):
        llm = make_llm(drafter=ToyDrafter(VOCAB, script), verify=rule)
        assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)] == plain
        settle(llm)
        assert llm.stats().drafts_accepted > 0


@pytest.mark.parametrize("rule", RULES)
def test_sampled_text_does_not_depend_on_who_shares_the_step(make_llm, executor, rule):
    """Where steps hold all the drafts that are proposed."""
    if executor != "native":
        pytest.skip("the reference's logits differ in their last bits with who shares a step")
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=20, logprobs=1, ignore_eos=True, **some)
        for seed, some in enumerate(({"allowed_token_ids": LETTERS}, {"top_k": 40}, {"frequency_penalty": 1.0}))
    ]
    together = make_llm(drafter=ToyDrafter(VOCAB, drawn), verify=rule).generate(PROMPTS, params, use_tqdm=False)
    alone = make_llm(drafter=ToyDrafter(VOCAB, drawn), verify=rule)
    for prompt, one, expected in zip(PROMPTS, params, together, strict=True):
        (found,) = alone.generate(prompt, one, use_tqdm=False)
        assert found.outputs[0].token_ids == expected.outputs[0].token_ids
        assert found.outputs[0].logprobs == expected.outputs[0].logprobs
    assert alone.stats().drafts_accepted > 0 < alone.stats().drafts - alone.stats().drafts_accepted


@pytest.mark.parametrize("rule", ["residual", "block"])
def test_sampled_text_is_distributed_as_without_drafts(make_llm, executor, rule):
    """The first three tokens of 1,500 seeds, with drafts and without."""
    if executor != "native":
        pytest.skip("one executor will do")
    count = 1500
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=3, allowed_token_ids=LETTERS[:3], ignore_eos=True)
        for seed in range(count)
    ]

    def seen(script):
        llm = make_llm(drafter=ToyDrafter(VOCAB, script), verify=rule, num_blocks=256)
        found = np.zeros((3, 3, 3))
        for output in llm.generate(["abc"] * count, params, use_tqdm=False):
            found[tuple(token - LETTERS[0] for token in output.outputs[0].token_ids)] += 1
        return found

    plain, drafted = seen(nothing), seen(drawn)
    statistic = ((plain - drafted) ** 2 / np.maximum(plain + drafted, 1)).sum()
    assert (plain != drafted).any()
    assert statistic < 55, "26 degrees of freedom: the 99.9 % point is 54.1"


@pytest.mark.parametrize("rule", RULES)
def test_a_form_holds_under_every_rule(open_llm, tiny, rule):
    llm = open_llm(drafter=ToyDrafter(tiny.info.vocab_size, drawn), verify=rule)
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=30, structure=Structure("regex", "[a-d]{3,9}"))
    for output in llm.generate(["abc"] * 4, params, use_tqdm=False):
        assert 3 <= len(output.outputs[0].text) <= 9 and set(output.outputs[0].text) <= set("abcd")


def test_what_a_rule_cannot_do_is_refused_by_name(open_llm):
    llm = open_llm(verify="typical")
    params = SamplingParams(temperature=1.0, logits_processor=lambda tokens, logits: None)
    with pytest.raises(UnsupportedError, match="logits_processor: not where drafts are verified by --verify typical"):
        llm.generate("abc", params, use_tqdm=False)
