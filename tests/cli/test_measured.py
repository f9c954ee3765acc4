"""`octavo explain --measure`: what it prints, its JSON, its plot; on a tiny model, with bursts of one step."""

import json
from xml.etree import ElementTree

import pytest

from octavo.runner import calibration, measure


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """One run a burst, and limits from a moment of measuring."""
    monkeypatch.setattr(measure, "BURSTS", 1)
    monkeypatch.setattr(measure, "BURST_SECONDS", 0.0)
    monkeypatch.setattr(calibration, "FOOTPRINTS", (2**19, 2**20))
    monkeypatch.setattr(measure, "FOOTPRINTS", (2**19, 2**20))
    monkeypatch.setattr(calibration, "RANDOM_FOOTPRINTS", (2**19,))
    monkeypatch.setattr(calibration.Gauge.read, "__defaults__", (0, 0.0))
    monkeypatch.setattr(calibration.Gauge.product, "__defaults__", (0.0,))
    monkeypatch.setattr(calibration, "PRODUCT_SECONDS", 0.0)


def measured(octavo, model, *words):
    outcome = octavo("explain", model, "--measure", "--threads", 2, "--json", *words)
    assert outcome.code == 0, outcome.err
    return outcome, json.loads(outcome.out.splitlines()[-1])


def test_json_and_plot(octavo, model, tmp_path):
    file = tmp_path / "roofline.svg"
    outcome, found = measured(octavo, model, "--batch", 3, "--context", 20, "--prefill", 40, "--svg", file)
    assert (found["model"], found["threads"]) == (model, 2) and found["isa"] in found["numerics"]
    assert (found["decode"]["batch"], found["decode"]["context"], found["prefill"]["prompt_tokens"]) == (3, 20, 40)
    assert (found["decode"]["tokens"], found["prefill"]["tokens"]) == (3, 40)
    kinds = set()
    for phase in (found["decode"], found["prefill"]):
        assert phase["steps"] >= 1 and phase["step_s"] >= phase["operators_s"] > 0
        assert sum(row["count"] for row in phase["kinds"]) == len(phase["operators"])
        for name in ("flops", "bytes", "weight_bytes", "cache_bytes"):
            assert sum(row[name] for row in phase["kinds"]) == sum(row[name] for row in phase["operators"]) > 0
        for row in phase["operators"]:
            assert row["bytes"] == row["weight_bytes"] + row["cache_bytes"] + row["value_bytes"]
            assert row["bound"] in ("weights", "cache", "values", "products", "barrier") and row["limit_s"] >= 0
        assert phase["limit_s"] == pytest.approx(sum(row["limit_s"] for row in phase["operators"]))
        kinds |= {row["name"] for row in phase["kinds"]}
    qkv = next(row for row in found["decode"]["kinds"] if row["kind"] == "fused.qkv")
    assert qkv["name"] == "fused.qkv wq+wk+wv" and qkv["count"] == 2 and qkv["flops"] == 2 * 3 * 2 * 48 * 80
    wq = next(row for row in found["weights"] if row["name"] == "0.wq")
    assert (wq["file_bytes"], wq["streamed_bytes"]) == (48 * 48 * 4, 64 * 64 * 2)  # f32 on disk; whole panels of bf16
    assert all(name in outcome.out for name in kinds) and "of limit" in outcome.out

    root = ElementTree.parse(file).getroot()
    texts = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert all(any(str(text).endswith(f"  {name}") for text in texts) for name in kinds)
    marks = [node for tag in ("circle", "polygon") for node in root.iter(f"{{http://www.w3.org/2000/svg}}{tag}")]
    assert len(marks) >= len(kinds) + 2  # the legend's and at least some of the dots


def test_cache_entries_in_int8_are_fewer_bytes(octavo, model):
    words = ("--context", 50, "--prefill", 16)
    wide = measured(octavo, model, *words)[1]["decode"]
    narrow = measured(octavo, model, *words, "--kv-dtype", "i8")[1]["decode"]
    of = {
        name: sum(row["cache_bytes"] for row in phase["kinds"]) for name, phase in (("wide", wide), ("narrow", narrow))
    }
    assert 0 < of["narrow"] < 0.7 * of["wide"]


def test_a_prompt_in_several_steps_costs_the_sum(octavo, model):
    whole = measured(octavo, model, "--prefill", 48)[1]["prefill"]
    cut = measured(octavo, model, "--prefill", 48, "--max-num-batched-tokens", 16)[1]["prefill"]
    assert whole["tokens"] == cut["tokens"] == 48

    def total(phase, name):
        return sum(row[name] for row in phase["operators"])

    assert total(whole, "flops") == total(cut, "flops")
    assert total(cut, "weight_bytes") > 2 * total(whole, "weight_bytes")


def test_lines_of_operators(octavo, model):
    few, many = (measured(octavo, model, "--prefill", 16, *words)[0].out for words in ((), ("--all",)))
    few, many = (out.rpartition("\n{")[0] for out in (few, many))
    assert " 0.q " in many and " 0.q " not in few and len(many.splitlines()) > len(few.splitlines())


@pytest.mark.parametrize(
    "words",
    [["--measure", "--plain"], ["--measure", "--layers", "0"], ["--svg", "x"], ["--all"], ["--batch", 2],
     ["--threads", 1], ["--recalibrate"], ["--measure", "--batch", -1], ["--measure", "--svg", "/no/such/place"]],
)  # fmt: skip
def test_what_does_not_go_together(octavo, model, words):
    outcome = octavo("explain", model, *words)
    assert outcome.code == 2 and outcome.err.splitlines()[-1].startswith("error: usage: ")


def test_a_bare_configuration_is_not_measured(refused, copy):
    (copy / "model.safetensors").unlink()
    assert "weights" in refused(2, "usage", "explain", copy, "--measure")
