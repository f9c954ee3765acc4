"""The calibration on disk, the curves read from it, and the least times made of it."""

import json
import math
from dataclasses import replace

import pytest

from octavo.backends.native.executor import available_isas
from octavo.program.limits import LIMITS, at
from octavo.program.rules import Cost
from octavo.runner import calibration
from octavo.runner.calibration import PRODUCTS, Calibration, Gauge, Key, calibrated
from octavo.runner.roofline import Reading, by_kind

MIB = 2**20


def made(key: Key, rate: float = 1e9) -> Calibration:
    counts = {1, key.threads}
    return Calibration(
        key=key,
        sequential={n: ((MIB, n * rate), (4 * MIB, n * rate / 2)) for n in counts},
        random={n: {unit: ((MIB, rate / unit),) for unit in calibration.RANDOM_UNITS} for n in counts},
        products={n: {"f32": n * rate, "bf16": 2 * n * rate} for n in counts},
        barrier=1e-7,
        seconds=0.5,
    )


@pytest.fixture
def measure(monkeypatch, tmp_path):
    """A measurement that only counts how often it was asked."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    asked = []

    def counting(key):
        asked.append(key)
        return made(key, rate=1e9 * len(asked))

    counting.asked = asked
    return counting


def test_kept_until_renewed(measure):
    first, notes = calibrated("portable", 2, measure=measure)
    again, _ = calibrated("portable", 2, measure=measure)
    assert first == again and notes == () and len(measure.asked) == 1
    other, _ = calibrated("portable", 3, measure=measure)
    assert other.key.threads == 3 and len(measure.asked) == 2
    renewed, _ = calibrated("portable", 2, renew=True, measure=measure)
    assert renewed != first and calibrated("portable", 2, measure=measure)[0] == renewed
    assert [path.suffix for path in first.key.path.parent.iterdir()] == [".json"] * 2  # nothing half-written is left


def spoilt(text: str, how: str) -> str:
    data = json.loads(text)
    body = data["calibration"]
    if how == "torn":
        return text[: len(text) // 2]
    if how == "edited":
        body["barrier"] *= 2
    if how == "list":
        return "[1, 2]"
    if how == "bytes":
        return "\x00" * 100
    if how == "emptied":
        return ""
    if how == "no curve":
        del body["sequential"]["2"]
        data["sum"] = calibration.digest(json.dumps(body, indent=1)).hex()
    if how == "foreign":
        body["key"]["processor"] = "another"
        data["sum"] = calibration.digest(json.dumps(body, indent=1)).hex()
    if how == "old":
        body["key"]["version"] -= 1
        data["sum"] = calibration.digest(json.dumps(body, indent=1)).hex()
    return json.dumps(data)


@pytest.mark.parametrize("how", ["torn", "edited", "list", "bytes", "emptied", "no curve", "foreign", "old"])
def test_a_spoilt_file_is_measured_anew(measure, how):
    path = calibrated("portable", 2, measure=measure)[0].key.path
    path.write_text(spoilt(path.read_text(), how))
    found, notes = calibrated("portable", 2, measure=measure)
    assert len(measure.asked) == 2 and len(notes) == 1 and "measured anew" in notes[0]
    assert calibrated("portable", 2, measure=measure) == (found, ()) and len(measure.asked) == 2


def test_a_home_that_cannot_be_written(measure, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "file"))
    found, notes = calibrated("portable", 1, measure=measure)
    assert found.products and "not kept" in notes[-1]


def test_a_disturbed_one_is_tried_again_and_never_kept(measure):
    tried = []

    def disturbed(key):
        tried.append(key)
        good = made(key)
        return replace(good, products={1: {"f32": 2e9, "bf16": 2e9}, 2: {"f32": 1e9, "bf16": 3e9}})

    found, notes = calibrated("portable", 2, measure=disturbed)
    assert len(tried) == 1 + calibration.RETRIES and "disturbed" in notes[-1] and not found.key.path.exists()
    assert not made(found.key).disturbed and calibrated("portable", 2, measure=measure)[1] == ()


def test_curves():
    curve = ((MIB, 100.0), (4 * MIB, 50.0))
    assert [at(curve, size) for size in (1, MIB, 4 * MIB, 2**40)] == [100.0, 100.0, 50.0, 50.0]
    assert at(curve, 2 * MIB) == pytest.approx(75.0)
    assert at(((MIB, 7.0),), 9 * MIB) == 7.0
    found = made(Key("here", 2, "portable"))
    assert found.read_rate(MIB) == 2e9 and found.read_rate(MIB, 5000) == 1e9 / 4096
    assert found.product_rate("bf16") == 4e9 and found.product_rate("int8") == 2e9  # no such product: as f32


@pytest.mark.parametrize("isa", available_isas())
def test_gauges_of_every_class(isa):
    gauge = Gauge(isa, 2, 2**20)
    for threads in (1, 2):
        for unit in (0, 512, 4096):
            assert math.isfinite(gauge.read(threads, 2**20, unit, 0.0)) and gauge.read(threads, 2**19, unit, 0.0) > 0
        rates = {kind: gauge.product(threads, kind, 0.0) for kind in PRODUCTS}
        assert rates["f32"] > 0 and rates["int8"] > 0
        assert (rates["bf16"] is None) == (isa in ("portable", "avx2"))
        assert (rates["int8 tile"] is None) == (isa != "amx")
    with pytest.raises(ValueError):
        gauge.read(2, 2**21)
    with pytest.raises(ValueError):
        gauge.read(2, 2**20, 100)


def test_readings_add_up():
    least = dict.fromkeys(LIMITS, 0.0)
    one = Reading(
        "0.q", "linear", "wq", "bf16 -> f32", 1, 2.0, Cost(10, 20, 0, 5), "bf16", 10, least | {"weights": 1.0}
    )
    two = replace(one, name="1.q", seconds=6.0, least=least | {"products": 3.0})
    [both] = by_kind([one, two])
    assert (both.name, both.count, both.seconds, both.cost.flops, both.operations) == ("linear wq", 2, 8.0, 20, 20)
    assert both.bound == "products" and both.limit_seconds == 3.0 and both.share_of_limit == 3 / 8
    assert both.bytes_per_second == 50 / 8 and one.bound == "weights"
    assert len(by_kind([one, replace(two, matrices="wk")])) == 2
