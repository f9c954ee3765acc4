"""Jobs out of distributions and traces: equal by seed, of the asked mean and shape, files that lie refused by line."""

import itertools
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.errors import BadFileError, MissingFileError, UsageError
from octavo.workload.arrivals import arrivals
from octavo.workload.lengths import parse_lengths
from octavo.workload.synthetic import Synthetic
from octavo.workload.trace import read_trace

SOURCE = Path(__file__).resolve().parents[2] / "src"


def take(iterator, count):
    return list(itertools.islice(iterator, count))


def synthetic(**fields):
    lengths = {"input_tokens": parse_lengths("100-200"), "output_tokens": parse_lengths("exponential:30")}
    return Synthetic(**{**lengths, "rate": 5.0, **fields})


def test_equal_seeds_equal_jobs():
    assert take(synthetic(seed=3).jobs(), 50) == take(synthetic(seed=3).jobs(), 50)
    assert take(synthetic(seed=3).jobs(), 50) != take(synthetic(seed=4).jobs(), 50)


def test_jobs_are_the_same_in_every_process():
    script = (
        "import itertools; from octavo.workload.synthetic import Synthetic as S;"
        "from octavo.workload.lengths import parse_lengths as p;"
        "print(list(itertools.islice(S(p('100-200'), p('exponential:30'), rate=5.0, seed=3).jobs(), 50)))"
    )
    for salt in ("1", "2"):
        environment = {"PYTHONPATH": str(SOURCE), "PYTHONHASHSEED": salt}
        made = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
        )
        assert made.stdout.strip() == str(take(synthetic(seed=3).jobs(), 50))


def test_one_trait_changes_no_other():
    before = take(synthetic().jobs(), 50)
    after = take(synthetic(output_tokens=parse_lengths("7"), prefix_tokens=20, prefix_groups=3).jobs(), 50)
    assert [(job.at, job.input_tokens) for job in before] == [(job.at, job.input_tokens) for job in after]


@pytest.mark.parametrize(
    ("kind", "burstiness", "variation"), [("constant", 1, 0), ("poisson", 1, 1), ("gamma", 1, 1), ("gamma", 4, 4)]
)
def test_arrivals_have_their_rate_and_shape(kind, burstiness, variation):
    times = take(arrivals(kind, 20.0, random.Random(1), burstiness), 20001)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times[0] == 0 and statistics.mean(gaps) == pytest.approx(0.05, rel=0.05)
    assert statistics.pvariance(gaps) / 0.05**2 == pytest.approx(variation, rel=0.15, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "mean", "least", "most"),
    [
        ("256", 256, 256, 256),
        ("10-20", 15, 10, 20),
        ("normal:100:10", 100, 1, 200),
        ("lognormal:100:0.5", 113, 1, 5000),
        ("exponential:50", 50, 1, 5000),
        ("exponential:50:60", 35, 1, 60),
    ],
)
def test_lengths(text, mean, least, most):
    lengths, rng = parse_lengths(text), random.Random(1)
    drawn = [lengths.next(rng) for _ in range(5000)]
    assert least <= min(drawn) and max(drawn) <= most and statistics.mean(drawn) == pytest.approx(mean, rel=0.04)


@pytest.mark.parametrize(
    "text",
    ["", "0", "-4", "20-10", "0-3", "normal:1", "normal:a:b", "exponential:0", "zipf:3", "exponential:1:2:3", "nan"],
)
def test_lengths_that_are_none(text):
    with pytest.raises(UsageError, match="not lengths"):
        parse_lengths(text)


def test_prefix_groups():
    jobs = take(synthetic(prefix_tokens=150, prefix_groups=4).jobs(), 200)
    assert {job.shared[0][0] for job in jobs} == {0, 1, 2, 3}
    assert all(job.shared[0][1] == min(150, job.input_tokens) for job in jobs)


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.4799600,110,27
2024-05-10 00:00:00.009930+00:00,3180,8
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 1100, "output_length": 50, "hash_ids": [0, 7, 8]}
{"timestamp": 4000, "input_length": 600, "output_length": 3, "hash_ids": [0, 9]}
"""


def write(folder, text):
    path = folder / "trace"
    path.write_text(text)
    return path


def test_azure(tmp_path):
    first, second, third = read_trace(write(tmp_path, AZURE), time_scale=2, length_scale=0.5)
    assert (first.at, first.input_tokens, first.output_tokens) == (0, 2404, 5)
    assert second.at == pytest.approx(0.25) and second.output_tokens == 14
    assert third.at * 2 == pytest.approx(15140576.02997, abs=1e-3)


def test_mooncake(tmp_path):
    first, second = read_trace(write(tmp_path, MOONCAKE))
    assert first.at == 0 and second.at == 3
    assert first.shared == ((0, 512), (7, 512), (8, 76)) and second.shared == ((0, 512), (9, 88))
    halved = read_trace(write(tmp_path, MOONCAKE), length_scale=0.5)
    assert halved[0].shared == ((0, 256), (7, 256), (8, 38)), "what was shared still is"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "neither"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        (AZURE + "yesterday,1,2\n", ":5:"),
        (AZURE + "2023-11-16 18:17:03.97,1\n", ":5:"),
        (AZURE + "2023-11-16 18:17:03.97,-1,4\n", ":5:"),
        (MOONCAKE + "{\n", ":3:"),
        (MOONCAKE + '{"timestamp": 3}\n', ":3:"),
        (MOONCAKE + '{"timestamp": 3, "input_length": -4, "output_length": 3}\n', ":3:"),
    ],
)
def test_traces_that_are_none(tmp_path, text, said):
    with pytest.raises(BadFileError, match=said):
        read_trace(write(tmp_path, text))


def test_a_trace_that_is_not_there(tmp_path):
    with pytest.raises(MissingFileError):
        read_trace(tmp_path / "absent")
