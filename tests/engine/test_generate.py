"""generate(): tokens depend on the request alone, and every parameter does what it says."""

import queue
from pathlib import Path

import pytest
from engines import settle

from octavo import LLM, SamplingParams
from octavo.errors import CapacityError, ContextLengthError, RequestError
from octavo.request import Request

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPTS = ["Hello the man", "abc", "a rather longer prompt, of more than two blocks of tokens in all", "x"]

LETTERS = tuple(range(64, 90))  # ids of "a" to "z"


def same_logprobs(executor, left, right):
    """The same tokens in the same order; values to the bit, except in torch, whose sums depend on the batch."""
    assert len(left) == len(right)
    for here, there in zip(left, right, strict=True):
        if executor == "native" or here is None:
            assert here == there
        else:
            chosen = next(iter(here))
            assert chosen == next(iter(there))
            assert here[chosen].logprob == pytest.approx(there[chosen].logprob, abs=1e-4)


def ids(outputs):
    return [[choice.token_ids for choice in output.outputs] for output in outputs]


def test_alone_equals_together(shared):
    alone = [ids(shared.generate(prompt, GREEDY))[0] for prompt in PROMPTS]
    assert ids(shared.generate(PROMPTS, GREEDY)) == alone
    assert len({choice for output in alone for choice in output}) == len(PROMPTS)


@pytest.mark.parametrize("options", [{"max_num_batched_tokens": 1}, {"max_num_batched_tokens": 5}, {"max_num_seqs": 2},
                                     {"block_tokens": 32}, {"plans_outstanding": 2, "max_num_batched_tokens": 7},
                                     {"enable_prefix_caching": False}])  # fmt: skip
def test_budgets_change_no_token(shared, make_llm, options):
    params = [SamplingParams(temperature=0.8, seed=7, max_tokens=12), GREEDY] * 2
    assert ids(make_llm(**options).generate(PROMPTS, params)) == ids(shared.generate(PROMPTS, params))


def test_shapes(shared):
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=2, prompt_logprobs=1)
    output = shared.generate("Hello the man", params)[0]
    choice = output.outputs[0]
    assert output.prompt == "Hello the man" and output.finished
    assert output.prompt_token_ids == tuple(shared.encode("Hello the man"))
    assert len(choice.token_ids) == len(choice.logprobs) == 5
    assert [next(iter(entry)) for entry in choice.logprobs] == list(choice.token_ids)
    assert all(2 <= len(entry) <= 3 for entry in choice.logprobs)
    assert all(entry[token].rank == 1 for entry, token in zip(choice.logprobs, choice.token_ids, strict=True))
    chosen = [entry[token].logprob for entry, token in zip(choice.logprobs, choice.token_ids, strict=True)]
    assert choice.cumulative_logprob == pytest.approx(sum(chosen)) and max(chosen) < 0
    assert choice.text == shared.decode(choice.token_ids)
    assert choice.finish_reason == "length" and choice.stop_reason is None
    assert output.prompt_logprobs[0] is None
    assert [next(iter(entry)) for entry in output.prompt_logprobs[1:]] == list(output.prompt_token_ids[1:])


def test_prompt_logprobs_do_not_depend_on_chunks(shared, make_llm, executor):
    params = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=3)
    whole = shared.generate(PROMPTS, params)
    cut = make_llm(max_num_batched_tokens=7, max_logit_rows=3).generate(PROMPTS, params)
    for here, there in zip(cut, whole, strict=True):
        same_logprobs(executor, here.prompt_logprobs, there.prompt_logprobs)
    assert all(len(output.prompt_logprobs) == len(output.prompt_token_ids) for output in whole)
    assert all(output.num_cached_tokens == 0 for output in whole)


def test_prompt_logprobs_behind_a_cached_prefix_are_those_without(make_llm, executor):
    llm = make_llm()
    prompt = PROMPTS[2]
    whole = llm.generate(prompt, SamplingParams(max_tokens=0, prompt_logprobs=2))[0]
    for first in (1, 16, 17, 33, len(whole.prompt_token_ids) - 1):
        part = llm.generate(prompt, SamplingParams(max_tokens=0, prompt_logprobs=2, prompt_logprobs_from=first))[0]
        assert part.num_cached_tokens == (first - 1) // 16 * 16
        assert part.prompt_logprobs[:first] == [None] * first
        same_logprobs(executor, part.prompt_logprobs[first:], whole.prompt_logprobs[first:])
    with pytest.raises(RequestError, match="prompt_logprobs_from"):
        llm.generate("abc", SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=99))


def test_prompt_logprobs_are_those_of_generation(shared):
    """The log-probability of a token as prompt equals the one it had when it was generated."""
    first = shared.generate("abc", SamplingParams(temperature=0, max_tokens=6, logprobs=0))[0]
    choice = first.outputs[0]
    again = {"prompt_token_ids": [*first.prompt_token_ids, *choice.token_ids]}
    second = shared.generate(again, SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=0))[0]
    scored = [next(iter(entry.values())).logprob for entry in second.prompt_logprobs[len(first.prompt_token_ids) :]]
    chosen = [next(iter(entry.values())).logprob for entry in choice.logprobs]
    assert scored == pytest.approx(chosen, abs=1e-5)
    assert second.outputs[0].token_ids == () and second.outputs[0].finish_reason == "length"


def test_seed_is_independent_of_batch_mates(shared):
    """T16: A has a seed, B has none; A is the same in every batch."""
    seeded = SamplingParams(temperature=1.0, seed=42, max_tokens=16)
    unseeded = SamplingParams(temperature=1.0, max_tokens=16)
    alone = ids(shared.generate("abc", seeded))[0]
    for _ in range(4):
        both = shared.generate(["x", "abc", "Hello"], [unseeded, seeded, unseeded])
        assert ids(both)[1] == alone
    free = {ids(shared.generate("abc", unseeded))[0][0] for _ in range(4)}
    assert len(free) > 1


def test_children_differ_and_repeat(shared):
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=10)
    output = shared.generate("abc", params)[0]
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert len({choice.token_ids for choice in output.outputs}) == 3
    assert ids(shared.generate("abc", params)) == ids([output])


def test_prefix_hit_counts_and_changes_nothing(make_llm):
    llm = make_llm()
    exact = {"prompt_token_ids": list(range(32))}  # a multiple of the block
    for prompt in (exact, PROMPTS[2]):
        cold = llm.generate(prompt, GREEDY)[0]
        warm = llm.generate(prompt, GREEDY)[0]
        assert cold.num_cached_tokens == 0 and warm.num_cached_tokens >= 31
        assert ids([warm]) == ids([cold])
    assert llm.stats().cached_tokens > 0


def test_preemption_changes_nothing(shared, make_llm, executor):
    small = make_llm(num_blocks=7, enable_prefix_caching=False)
    prompts = [{"prompt_token_ids": [i, *range(20)]} for i in range(5)]
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=30, logprobs=1)
    tight, roomy = small.generate(prompts, params), shared.generate(prompts, params)
    assert small.stats().preemptions >= 1
    assert ids(tight) == ids(roomy)
    for here, there in zip(tight, roomy, strict=True):
        same_logprobs(executor, here.outputs[0].logprobs, there.outputs[0].logprobs)


def test_stop_string_cuts_text_ids_and_logprobs(shared):
    """The output ends with the token that completes the stop string; its text ends before it."""
    common = {"temperature": 0, "max_tokens": 24, "logprobs": 0, "allowed_token_ids": LETTERS}
    free = shared.generate("abc", SamplingParams(**common))[0].outputs[0]
    stop = free.text[9:12]
    cut = shared.generate("abc", SamplingParams(**common, stop=stop))[0].outputs[0]
    assert cut.finish_reason == "stop" and cut.stop_reason == stop
    assert free.text.index(stop) == len(cut.text) and free.text.startswith(cut.text)
    assert len(cut.token_ids) == len(cut.logprobs) < 24
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert stop in shared.decode(cut.token_ids) and stop not in shared.decode(cut.token_ids[:-1])
    kept = SamplingParams(**common, stop=stop, include_stop_str_in_output=True)
    assert shared.generate("abc", kept)[0].outputs[0].text == cut.text + stop


def test_stop_string_that_never_comes_loses_nothing(shared):
    """T7."""
    common = {"temperature": 0, "max_tokens": 12, "allowed_token_ids": LETTERS}
    free = shared.generate("abc", SamplingParams(**common))[0].outputs[0]
    held = shared.generate("abc", SamplingParams(**common, stop=(free.text[-1] + "ZZZZ", free.text[4:6] + "ZZZZ")))
    assert held[0].outputs[0] == free


def test_stop_token_and_min_tokens(shared):
    free = shared.generate("abc", GREEDY)[0].outputs[0]
    stop = free.token_ids[3]
    cut = shared.generate("abc", SamplingParams(temperature=0, max_tokens=12, stop_token_ids=(stop,)))[0].outputs[0]
    assert cut.token_ids == free.token_ids[:4] and (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.text == shared.decode(free.token_ids[:3])
    late = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=(stop,), min_tokens=8)
    other = shared.generate("abc", late)[0].outputs[0]
    assert len(other.token_ids) >= 8 and stop not in other.token_ids[:7]


def test_every_eos_id_is_banned_before_min_tokens(shared):
    """T10: the model's own EOS among them."""
    eos = shared.tokenizer.eos_ids
    bias = dict.fromkeys(eos, 100.0)
    ended = shared.generate("abc", SamplingParams(temperature=0, max_tokens=12, logit_bias=bias))[0].outputs[0]
    assert len(ended.token_ids) == 1 and ended.token_ids[0] in eos and ended.finish_reason == "stop"
    assert ended.stop_reason is None and ended.text == ""
    params = SamplingParams(temperature=0, max_tokens=12, min_tokens=5, logit_bias=bias)
    late = shared.generate("abc", params)[0].outputs[0]
    assert len(late.token_ids) == 6 and not set(eos) & set(late.token_ids[:5])
    ignoring = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logit_bias=bias)
    assert len(shared.generate("abc", ignoring)[0].outputs[0].token_ids) == 12


def test_bad_words_never_appear(shared):
    common = {"temperature": 0, "max_tokens": 12, "allowed_token_ids": LETTERS}
    free = shared.generate("abc", SamplingParams(**common))[0].outputs[0]
    for word in (free.text[5], free.text[4:7]):  # one token, several tokens
        banned = shared.generate("abc", SamplingParams(**common, bad_words=(word,)))[0].outputs[0]
        assert word in free.text and word not in banned.text


def test_bos_stands_once(shared):
    """T11: text that spells the BOS gets no second one."""
    bos = shared.tokenizer.bos_id
    assert shared.encode("<s>abc") == shared.encode("abc") and shared.encode("abc").count(bos) == 1
    chat = shared.chat([{"role": "user", "content": "hi <s>"}], GREEDY)[0]
    assert chat.prompt_token_ids.count(bos) == 1


@pytest.mark.parametrize(
    ("prompt", "params", "error", "field"),
    [
        ("", {}, RequestError, "prompt"),
        ({"prompt_token_ids": []}, {}, RequestError, "prompt"),
        ({"prompt_token_ids": [3, 272]}, {}, RequestError, "prompt"),
        ({"prompt_token_ids": [3, True]}, {}, RequestError, "prompt"),
        ({"prompt_token_ids": "abc"}, {}, RequestError, "prompt"),
        ({"text": "abc"}, {}, RequestError, "prompt"),
        ({"prompt_token_ids": [1] * 256}, {}, ContextLengthError, "prompt"),
        ({"prompt_token_ids": [1] * 250}, {"max_tokens": 7}, ContextLengthError, "max_tokens"),
        ("abc", {"logit_bias": {272: 1.0}}, RequestError, "logit_bias"),
        ("abc", {"allowed_token_ids": [272]}, RequestError, "allowed_token_ids"),
        ("abc", {"allowed_token_ids": [257], "min_tokens": 1}, RequestError, "allowed_token_ids"),
        ("abc", {"allowed_token_ids": [64], "bad_words": ["a"]}, RequestError, "allowed_token_ids"),
        ("abc", {"stop_token_ids": range(272), "min_tokens": 1}, RequestError, "stop_token_ids"),
        ("abc", {"stop_token_ids": [-1]}, RequestError, "stop_token_ids"),
        ("abc", {"stop": ["x"], "detokenize": False}, RequestError, "stop"),
        ("abc", {"max_tokens": 0}, RequestError, "max_tokens"),
    ],
)
def test_refusals_name_the_field(shared, prompt, params, error, field):
    steps = shared.stats().steps
    with pytest.raises(error) as caught:
        shared.generate(["abc", prompt], SamplingParams(**params))
    assert caught.value.param == field
    assert shared.stats().steps == steps


def test_template_options_are_not_the_engines_own(shared):
    talk = [{"role": "user", "content": "abc"}]
    with pytest.raises(RequestError) as caught:
        shared.chat(talk, GREEDY, chat_template_kwargs={"tools": "x"}, use_tqdm=False)
    assert caught.value.param == "chat_template_kwargs"


def test_adapters_are_refused_by_name(shared):
    inbox = queue.SimpleQueue()
    shared._engine.submit(Request("tuned", (70, 71), SamplingParams(), adapter="tone@1"), inbox.put)
    delta = inbox.get()
    assert delta.finish_reason == "error" and "adapter 'tone@1'" in delta.stop_reason
    settle(shared)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", 5),
        ("stop_token_ids", 5),
        ("stop_token_ids", [1.5]),
        ("stop_token_ids", "12"),
        ("allowed_token_ids", [True]),
        ("allowed_token_ids", 7),
        ("logit_bias", {1.7: 1.0}),
        ("logit_bias", [1]),
        ("bad_words", [b"a"]),
        ("ignore_eos", "no"),
        ("bad_words", ["a" * 257]),
        ("bad_words", ["a"] * 1025),
        ("stop_token_ids", [1] * 1025),
    ],
)
def test_parameters_of_a_wrong_type_or_size_are_refused_at_once(field, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_a_lone_string_is_a_list_of_one():
    assert SamplingParams(stop="ab", bad_words="cd") == SamplingParams(stop=("ab",), bad_words=("cd",))


@pytest.mark.parametrize("prompts", [None, 5, b"abc"])
def test_prompts_that_are_none(shared, prompts):
    with pytest.raises(RequestError) as caught:
        shared.generate(prompts)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("priority", ["high", None, True, 2**31 + 1])
def test_priorities_can_be_compared(shared, priority):
    with pytest.raises(RequestError) as caught:
        shared.generate(["abc", "abd"], GREEDY, priority=priority)
    assert caught.value.param == "priority"
    assert shared.generate("abc", GREEDY, priority=-(2**31))[0].outputs[0].finish_reason == "length"


def test_a_path_is_a_model_too(model, tiny):
    with LLM(Path(model), threads=1, num_blocks=16) as llm:
        assert ids(llm.generate("abc", GREEDY)) == ids(tiny.generate("abc", GREEDY))


@pytest.mark.parametrize("params", [{"temperature": 0}, [{"temperature": 0}], 0])
def test_params_that_are_none(shared, params):
    with pytest.raises(RequestError) as caught:
        shared.generate(["abc"], params)
    assert caught.value.param == "sampling_params"


def test_what_can_never_fit_is_refused(make_llm):
    llm = make_llm(num_blocks=4)
    with pytest.raises(CapacityError, match="64 tokens"):
        llm.generate({"prompt_token_ids": [1] * 60}, SamplingParams(max_tokens=5))
    assert len(llm.generate({"prompt_token_ids": [1] * 60}, SamplingParams(max_tokens=4))) == 1


def test_token_lists_and_detokenize_off(shared):
    prompt = shared.encode("abc")
    output = shared.generate(prompt, SamplingParams(temperature=0, max_tokens=6, detokenize=False))[0]
    assert output.prompt is None and output.prompt_token_ids == tuple(prompt)
    assert output.outputs[0].text == "" and len(output.outputs[0].token_ids) == 6
    assert output.outputs[0].token_ids == shared.generate("abc", GREEDY)[0].outputs[0].token_ids[:6]


def test_params_per_prompt_must_match(shared):
    with pytest.raises(RequestError, match="2 sampling_params for 1 prompts"):
        shared.generate(["abc"], [GREEDY, GREEDY])


def test_preempted_requests_find_their_own_blocks_again(shared, make_llm):
    """T28: a shared prefix, a pool a little too small, the prefix cache on."""
    small = make_llm(num_blocks=6)
    prefix = list(range(40, 56))
    prompts = [{"prompt_token_ids": [*prefix, i, i + 1, i + 2]} for i in range(3)]
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    tight, roomy = small.generate(prompts, params), shared.generate(prompts, params)
    assert ids(tight) == ids(roomy)
    assert small.stats().preemptions >= 1 and small.stats().cached_tokens > 0
