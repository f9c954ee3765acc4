"""The scheduler under faults: 2,000 seeds of 200 steps and more, in chunks that can run side by side."""

from collections import Counter

import pytest

from policy.sim import simulate

SEEDS, CHUNK, STEPS = 2000, 100, 200


def totals(reports):
    counts = Counter()
    for report in reports:
        counts.update(plans=report.plans, requests=report.requests, refused=report.refused, rejected=report.rejected)
        for name, value in report.stats.as_dict().items():
            if isinstance(value, dict):
                counts.update({f"{name} {key}": number for key, number in value.items()})
            elif isinstance(value, int):
                counts[name] += value
    return counts


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_invariants_hold_and_outputs_are_those_of_a_run_alone(first, capsys):
    counts = totals(simulate(seed, STEPS) for seed in range(first, first + CHUNK))
    with capsys.disabled():
        shown = ("plans", "requests", "hits", "full_hits", "preemptions", "copies", "refused")
        aborts = {name[7:]: counts[name] for name in counts if name.startswith("aborts")}
        print(f"\nseeds {first}+{CHUNK}: " + ", ".join(f"{name} {counts[name]}" for name in shown), f"aborts {aborts}")
    assert counts["plans"] >= CHUNK * STEPS
    for name in ("hits", "full_hits", "preemptions", "chunks", "deferred", "drafts_accepted", "drafts_rejected"):
        assert counts[name] > 0, name
    for name in ("copies", "late_results", "refused", "rejected", "finished stop", "finished length"):
        assert counts[name] > 0, name
    assert min(counts[f"aborts {state}"] for state in ("waiting", "running", "in_flight")) > 0


def test_the_same_seed_gives_the_same_trace():
    for seed in range(20):
        assert simulate(seed) == simulate(seed)


def test_different_seeds_give_different_traces():
    assert len({simulate(seed, 20).trace for seed in range(20)}) == 20
