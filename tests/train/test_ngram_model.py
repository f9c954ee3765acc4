"""`octavo train ngram`: chances beside counts by hand, the file, what is wrong with one, and a drafter of it."""

import json
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from chance import chi_square

from octavo import LLM, SamplingParams
from octavo.cli.main import main
from octavo.drafters.ngram_file import FIXED, NgramModel
from octavo.drafters.ngram_lm import NgramText
from octavo.drafters.port import Proposal
from octavo.engine.vocabulary import load_tokenizer
from octavo.errors import BadFileError, ConfigError, MissingFileError
from octavo.request import Request
from octavo.train.ngram import counted, write


class ByHand:
    """Interpolated Kneser-Ney, as its formula says."""

    def __init__(self, tokens, vocab, order):
        self.vocab, self.order = vocab, order
        grams = {n: Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)) for n in range(1, order + 1)}
        self.counts = {order: grams[order]}
        for n in range(1, order):
            before = defaultdict(set)
            for gram in grams[n + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[n] = Counter({gram: len(kinds) for gram, kinds in before.items()})
        self.discounts = {}
        for n, counts in self.counts.items():
            once, twice = (sum(count == k for count in counts.values()) for k in (1, 2))
            self.discounts[n] = once / (once + 2 * twice) if once and twice else 0.5

    def chance(self, token, context):
        context = tuple(context)[max(len(context) - self.order + 1, 0) :]
        n = len(context) + 1
        after = {gram[-1]: count for gram, count in self.counts[n].items() if gram[:-1] == context}
        lower = 1 / self.vocab if n == 1 else self.chance(token, context[1:])
        if not after:
            return lower
        discount, total = self.discounts[n], sum(after.values())
        return (max(after.get(token, 0) - discount, 0) + discount * len(after) * lower) / total


@pytest.fixture
def tokenizer(home):
    return load_tokenizer(str(home / "model"))


def made(tokenizer, tokens, order, path):
    rows, discounts, arrays = counted(np.array(tokens, np.uint64), tokenizer.size, order)
    write(path, order, tokenizer, rows, discounts, arrays)
    return NgramModel(path)


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("letters", [2, 7])
def test_chances_are_those_of_the_formula_and_add_up_to_one(tokenizer, tmp_path, order, letters):
    noise = random.Random(order * letters)
    tokens = [noise.randrange(letters) ** 2 % 11 for _ in range(150)]
    model, hand = made(tokenizer, tokens, order, tmp_path / "m"), ByHand(tokens, tokenizer.size, order)
    contexts = [tokens[place : place + length] for place in (0, 20, 77) for length in range(order + 2)]
    contexts += [[100, 3], [3, 100], [0, 0, 0, 0], [100] * 5]
    for context in contexts:
        chances = [model.chance(token, context) for token in range(tokenizer.size)]
        assert sum(chances) == pytest.approx(1.0, abs=1e-9)
        for token in (*range(12), 100):
            assert chances[token] == pytest.approx(hand.chance(token, context), rel=1e-12)
        likely = model.likely(context, 4)
        assert [chance for _, chance in likely] == sorted((chance for _, chance in likely), reverse=True)
        assert all(chance == chances[token] for token, chance in likely) and len(likely) <= 4
        nodes = [token for token in range(12) if hand.counts[1][(token,)]]
        if len(nodes) <= 4:
            assert likely[0][1] == max(chances)


def test_the_most_frequent_follower_is_the_likeliest(tokenizer, tmp_path):
    model = made(tokenizer, [1, 2, 3] * 30 + [1, 2, 4] * 3, 3, tmp_path / "m")
    assert model.likely([1, 2], 2)[0][0] == 3 and model.likely([9, 2], 1)[0][0] == 3
    assert model.likely([1, 2], 1)[0][1] > 0.8
    assert model.likely([], 3)


@pytest.fixture
def ngram(home, tmp_path, capsys):
    """ngram(words...) -> (code, stdout, stderr, file)."""

    def call(*words, data="text.txt"):
        out = tmp_path / "model.ngram"
        given = ("--model", home / "model", "--data", home / data, "--out", out, *words)
        code = main([str(word) for word in ("train", "ngram", *given)])
        said = capsys.readouterr()
        return code, said.out, said.err, out

    return call


def test_a_model_is_trained_told_and_read_again(ngram, tokenizer):
    code, out, err, path = ngram("--order", 3, "--json")
    assert code == 0, err
    report = json.loads(out.splitlines()[-1])
    assert report["order"] == 3 and report["bytes"] == path.stat().st_size and report["held_out"] > 0
    assert 1 < report["perplexity"] < 20 and report["right"] > 0.5
    assert "3-grams" in out and "discount" in out and "held out" in out
    first, model = path.read_bytes(), NgramModel(path)
    model.check(tokenizer)
    assert list(model.rows) == report["rows"]
    ngram("--order", 3)
    assert path.read_bytes() == first, "the same text gives the same bytes"
    assert ngram("--tokens", 200, "--json")[0] == 0
    assert NgramModel(path).order == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--order", 1), "--order is from 2 to 8, not 1"),
        (("--order", 9), "--order is from 2 to 8, not 9"),
        (("--epochs", 9), "train ngram: --epochs is of head"),
        (("--kind", "medusa"), "train ngram: --kind is of head"),
        (("--float32",), "train ngram: --float32 is of head"),
        (("--tokens", 10), "too little text: 10 tokens"),
        (("--tokens", 0), "--tokens is at least 1"),
    ],
)
def test_refusals(ngram, words, said):
    code, _, err, path = ngram(*words)
    assert code == 2 and said in err and err.count("\n") == 1 and not path.exists()


def damaged(data, kind):
    if kind == "empty":
        return b""
    if kind == "short":
        return data[:50]
    if kind == "magic":
        return b"GGUF" + data[4:]
    if kind == "order":
        return data[:8] + b"\xff\x00\x00\x00" + data[12:]
    if kind == "header":
        return data[: FIXED.size + 3]
    if kind == "rows":
        return data[: FIXED.size] + b"\xff" * 8 + data[FIXED.size + 8 :]
    if kind == "cut":
        return data[:-8]
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


@pytest.mark.parametrize("kind", ["empty", "short", "magic", "order", "header", "rows", "cut", "flipped"])
def test_files_that_are_damaged_are_said_in_a_line(ngram, home, capsys, kind):
    path = ngram("--order", 2)[3]
    path.write_bytes(damaged(path.read_bytes(), kind))
    with pytest.raises(BadFileError, match=str(path.name)):
        NgramModel(path)
    words = ("run", home / "model", "x", "--max-tokens", 1, "--speculate", f"ngramlm:{path}")
    assert main([str(word) for word in words]) == 65
    err = capsys.readouterr().err
    assert err.startswith("error: ") and str(path) in err and err.count("\n") == 1


def test_files_that_are_absent_or_of_another_vocabulary(ngram, tmp_path, tokenizer):
    with pytest.raises(MissingFileError, match="none"):
        NgramModel(tmp_path / "none")
    path = ngram("--order", 2)[3]
    data = bytearray(path.read_bytes())
    data[20] ^= 1  # of the vocabulary's digest
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="another tokenizer"):
        NgramModel(path).check(tokenizer)


@pytest.mark.parametrize("verify", ["equal", "residual"])
def test_a_drafter_of_it_changes_no_greedy_text(ngram, home, verify):
    path = ngram()[3]
    prompts = ["the man in an inn", "as a better answer", "nothing of the kind"]
    letters = (*range(60, 70),)
    params = [
        SamplingParams(temperature=0, max_tokens=24, logprobs=1, ignore_eos=True, allowed_token_ids=letters),
        SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=3, max_tokens=24, ignore_eos=True),
    ]

    def said(**options):
        with LLM(str(home / "model"), threads=1, num_blocks=64, **options) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs], llm.stats()

    plain, _ = said()
    drafted, stats = said(speculate=f"ngramlm:{path}", verify=verify)
    assert drafted[:2] == plain[:2] and stats.drafts > 0
    assert drafted[2] == plain[2] or verify == "residual"


def test_draws_follow_the_chances_that_are_told(tokenizer, tmp_path):
    model = made(tokenizer, [1, 2, 3] * 20 + [1, 2, 4] * 9 + [1, 2, 5] * 5, 3, tmp_path / "m")
    counts, draws = Counter(), 3000
    for seed in range(draws):
        request = Request("r", (8, 9, 1, 2), SamplingParams(temperature=1.0), seed=seed)
        text = NgramText(model, request, drawn=True)
        for token in (8, 9, 1, 2):
            text.add(token)
        proposal = text.follow(0, 2)
        assert isinstance(proposal, Proposal) and len(proposal.chances) == len(proposal.token_ids)
        for token, chances in zip(proposal.token_ids, proposal.chances, strict=True):
            assert sum(chances.values()) == pytest.approx(1.0) and token in chances
        counts[proposal.token_ids[0]] += 1
    told = proposal.chances[0]
    statistic, point = chi_square(
        np.array([counts[token] for token in told]), np.array([draws * chance for chance in told.values()])
    )
    assert statistic < point
    greedy = NgramText(model, Request("r", (1,), SamplingParams(temperature=0)), drawn=True)
    for token in (1, 2):
        greedy.add(token)
    found = greedy.follow(0, 1)
    assert (found.token_ids, found.chances) == ((3,), ())
    greedy.add(1)
    greedy.add(2)
    assert greedy.guesses() and greedy.follow(0, 2) == [1, 2], "what stood in its own text comes first"
