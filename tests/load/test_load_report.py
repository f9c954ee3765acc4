"""What a run leaves: files that can be read again, pages that need nothing else, and two runs compared."""

import csv
import json
import re
import xml.etree.ElementTree as tree
from array import array
from dataclasses import replace

import pytest

from octavo.errors import BadFileError, MissingFileError, UsageError
from octavo.load.plot import linear, logarithmic
from octavo.load.record import Record
from octavo.load.report import html, svg, write_report
from octavo.load.run import Run
from octavo.load.tables import comparison, differences, facts


def run_of(scale=1.0, count=200, failed=0, **fields):
    """Answers whose first token takes 10 to 30 ms, times `scale`."""
    records = []
    for number in range(count):
        due, first = number * 0.05, 0.01 * scale * (1 + number % 21 / 10)
        record = Record(number, due, 100, 4, sent=due, first=due + first, status=200, prompt_tokens=100, tokens=4)
        record.gaps = array("d", [0.005 * scale] * 3)
        record.last = record.end = due + first + 0.015 * scale
        if number < failed:
            record.fail("HTTP 429 <busy>", "slow & steady")
        records.append(record)
    settings = {"rate": 20.0, "arrivals": "poisson", "input_tokens": "100", "output_tokens": "4", "salt": str(scale)}
    given = {"version": "1", "started": "2030-01-01T00:00:00+00:00", "url": "http://127.0.0.1/v1", "model": "m<1>"}
    return Run(**given, settings=settings | fields, slo={"ttft": 0.0205}, records=records)


def test_json_comes_back(tmp_path):
    run, path = run_of(failed=3), str(tmp_path / "run.json")
    run.write_json(path)
    read = Run.read(path)
    assert read.settings == run.settings and read.slo == run.slo and read.model == run.model
    assert read.summary.errors == {"HTTP 429 <busy>": 3} and read.summary.good == run.summary.good
    assert read.summary.times["gap"].values == pytest.approx(run.summary.times["gap"].values, abs=1e-6)
    stated = json.loads((tmp_path / "run.json").read_text())["summary"]
    assert stated["requests"] == 200 and stated["failed"] == 3
    assert stated["ttft"]["p50"] == pytest.approx(run.summary.times["ttft"].percentile(50), abs=1e-6)


def test_csv_has_a_line_a_request(tmp_path):
    run_of(failed=1).write_csv(str(tmp_path / "run.csv"))
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 200 and rows[0]["error"] == "HTTP 429 <busy>" and rows[1]["error"] == ""
    assert float(rows[1]["ttft"]) == pytest.approx(0.011)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"octavo_load": 1}', '{"octavo_load": 1, "requests": [3]}'])
def test_files_that_are_no_run(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadFileError):
        Run.read(str(tmp_path / "run.json"))
    with pytest.raises(MissingFileError):
        Run.read(str(tmp_path / "absent.json"))


def test_a_run_with_wrong_types_is_refused(tmp_path):
    path = tmp_path / "run.json"
    run_of(count=2).write_json(str(path))
    value = json.loads(path.read_text())
    value["requests"][0]["end"] = "soon"
    path.write_text(json.dumps(value))
    with pytest.raises(BadFileError):
        Run.read(str(path))


@pytest.mark.parametrize("other", [None, run_of(2.0)], ids=["one", "two"])
def test_pages_need_nothing_else(other):
    page = html(run_of(failed=2), other)
    assert not re.search(r"<script|<link|<img|@import|url\(|src=|href=", page)
    assert "m&lt;1&gt;" in page and "m<1>" not in page
    assert not re.findall(r'https?://(?!www\.w3\.org/2000/svg|127\.0\.0\.1/v1)[^\s"<]*', page)


@pytest.mark.parametrize("run", [run_of(failed=2), run_of(count=1), run_of(count=0), run_of(count=2, failed=2)])
def test_charts_are_well_formed(run):
    for text in (svg(run), svg(run, run)):
        root = tree.fromstring(text)
        assert root.tag.endswith("svg") and "nan" not in text and "inf" not in text
    assert facts(run)


def test_the_name_of_a_report_says_what_it_is(tmp_path):
    write_report(str(tmp_path / "a.svg"), run_of())
    write_report(str(tmp_path / "a.html"), run_of())
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    with pytest.raises(UsageError, match="html or"):
        write_report(str(tmp_path / "a.pdf"), run_of())


def verdict(rows, name):
    return next(row for row in rows if row[0].startswith(name))[-1]


def test_two_runs():
    rows = comparison(run_of(), run_of(1.5))
    assert verdict(rows, "time to first token, p50") == "higher"
    assert verdict(comparison(run_of(1.5), run_of()), "time to first token, p50") == "lower"
    assert verdict(comparison(run_of(), run_of()), "time to first token, p50") == "within noise"
    assert verdict(comparison(run_of(), run_of(1.5, count=9)), "time to first token, p50") == "too few to tell"


def test_what_differs_is_said():
    assert differences(run_of(), run_of(2.0)) == []
    assert differences(run_of(), replace(run_of(seed=4), model="other")) == [
        "model: m<1> and other",
        "seed: None and 4",
    ]


@pytest.mark.parametrize("values", [[0.0], [3.0], [0.001, 0.002], [1, 7, 96], [1e-9, 1e9], [20, 22, 24], []])
def test_axes_hold_their_values(values):
    for axis in (linear("", values), logarithmic("", values)):
        assert axis.low < axis.high and 2 <= len(axis.ticks) <= 20
        assert all(value <= axis.high for value in values)
        assert all(0 <= axis.share(value) <= 1 for value in values)
