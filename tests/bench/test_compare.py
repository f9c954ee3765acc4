"""What a comparison with peers does around the peers: rates, pairs, pages, the engine that waits."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from peers.engines import EngineFailed, Run, Worker
from peers.report import Results, against_best, markdown, plot, table
from peers.worker import prompts, rates

FAKE = """
import sys
sys.path.insert(0, {worker!r})
from worker import claim_stdout, serve
out = claim_stdout()
print("starting")
def generate(prompts, steps):
    tokens = steps if len(prompts) < 3 else steps - 1
    print("noise of a library")
    return 0.0, [[1.0 + number + step for step in range(tokens)] for number, _ in enumerate(prompts)]
serve(out, "7.1", 0.0, generate)
"""


def test_rates_count_only_what_was_asked():
    # two requests of 10 tokens: the second begins at 3 and the first ends at 5
    assert rates(1.0, [[2.0, 4.0, 5.0], [3.0, 5.0, 7.0]], 10) == {"prefill": 10.0, "decode": 1.5}


def test_prompts_are_equal_for_every_engine_and_unlike_each_other():
    first, second = prompts(2, 64, seed=3)
    assert prompts(2, 64, seed=3) == [first, second] and first != second and prompts(2, 64, seed=4)[0] != first


def test_a_worker_waits_and_must_generate_what_was_asked(tmp_path):
    script = tmp_path / "fake.py"
    script.write_text(FAKE.format(worker=str(Path(__file__).parents[2] / "bench" / "peers")))
    worker = Worker("fake", Path(sys.executable), str(script))
    try:
        assert worker.version == "7.1"
        state = Path(f"/proc/{worker._process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        assert state == "T"
        assert worker.measure(Run("one", 1, 8, 5), 0) == {"prefill": 8.0, "decode": 1.0}
        with pytest.raises(EngineFailed, match="asked for 5 tokens a request, got"):
            worker.measure(Run("three", 3, 8, 5), 0)
    finally:
        worker.close()
    with pytest.raises(EngineFailed, match="ended with exit code"):
        Worker("fake", Path(sys.executable), "no_such_worker.py")


@pytest.fixture
def results() -> Results:
    results = Results(model="m", threads=2, date="d", machine={"cores": "2"}, engines={"octavo": "1", "peer": "2"})
    results.add("m", "8 bits", "decode-1", {"octavo Q8_0": 30.0, "peer Q8_0": 10.0})
    results.add("m", "8 bits", "decode-1", {"octavo Q8_0": 80.0, "peer Q8_0": 20.0, "late Q8_0": 5.0})
    results.add("m", "8 bits", "decode-1", {"octavo Q8_0": 50.0})
    return results


def test_ratios_are_of_neighbours(results):
    lists = results.rates["m"]["8 bits"]["decode-1"]
    assert lists["late Q8_0"] == [None, 5.0, None]
    assert against_best(lists, "octavo Q8_0") == ("peer Q8_0", [3.0, 4.0])
    assert against_best({"octavo Q8_0": [1.0]}, "octavo Q8_0") is None


def test_pages(results, tmp_path):
    path = tmp_path / "samples.json"
    path.write_text(results.dump())
    assert Results.load(path) == results
    assert "3.50 (3.00-4.00, 2 rounds) of peer Q8_0" in table(results)
    assert "| decode, batch 1, context 128 | 50 (30-80) | 5 (5-5) | 15 (10-20) |" in markdown(results)
    bars = [e for e in ElementTree.fromstring(plot(results)) if e.tag.endswith("rect")][1:]
    assert [bar.attrib["width"] for bar in bars] == ["600", "180", "60"]
