"""A finished run: what was asked for, and the record of every request; to JSON and back, and to CSV."""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from octavo.errors import BadFileError, MissingFileError, ResourceError
from octavo.load.record import Record
from octavo.load.summary import PERCENTILES, Distribution, Summary, summarize

FORMAT = 1  # of the JSON file
_FIELDS = (
    *("number", "due", "sent", "first", "last", "end", "status", "input_tokens", "output_tokens"),
    *("prompt_tokens", "cached_tokens", "tokens", "error", "message", "cut"),
)
DIGITS = 6  # microseconds


@dataclass(frozen=True)
class Run:
    """settings: what repeats the run, by name. slo: seconds by name. started: ISO 8601, in UTC."""

    version: str
    started: str
    url: str
    model: str
    settings: Mapping[str, Any]
    slo: Mapping[str, float]
    records: Sequence[Record]

    @cached_property
    def summary(self) -> Summary:
        return summarize(self.records, self.slo)

    def write_json(self, path: str) -> None:
        """Raises ResourceError."""
        head = {name: getattr(self, name) for name in ("version", "started", "url", "model", "settings", "slo")}
        value = {"octavo_load": FORMAT, **head, "summary": figures(self.summary)}
        value["requests"] = [_row(record) | {"gaps": _rounded(record.gaps)} for record in self.records]
        write_text(path, json.dumps(value, separators=(",", ":")))

    def write_csv(self, path: str) -> None:
        """A line a request. Raises ResourceError."""
        try:
            with open(path, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, [*_FIELDS, "ttft", "tpot", "e2e", "max_gap"])
                writer.writeheader()
                for record in self.records:
                    more = {"ttft": record.ttft, "tpot": record.tpot, "e2e": record.e2e}
                    more["max_gap"] = max(record.gaps, default=None)
                    writer.writerow(_row(record) | {name: _short(value) for name, value in more.items()})
        except OSError as error:
            raise ResourceError(f"{path}: {error.strerror}", code="cannot_write") from None

    @classmethod
    def read(cls, path: str) -> Run:
        """Raises MissingFileError, BadFileError."""
        try:
            value = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise MissingFileError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise BadFileError(f"{path}: not JSON: {error}") from None
        if not isinstance(value, dict) or value.get("octavo_load") != FORMAT:
            raise BadFileError(f"{path}: not a run of `octavo load --json` of this version")
        try:
            records = [
                Record(**{name: row[name] for name in _FIELDS}, gaps=array("d", row["gaps"]))
                for row in value["requests"]
            ]
            names = ("version", "started", "url", "model", "settings", "slo")
            run = cls(**{name: value[name] for name in names}, records=records)
            run.summary  # noqa: B018 - wrong types are found here
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise BadFileError(f"{path}: not a whole run of `octavo load --json`") from None
        return run


def figures(summary: Summary) -> dict[str, Any]:
    """The summary as plain data: seconds, tokens, requests."""
    return {
        "seconds": _short(summary.seconds),
        "requests": summary.requests,
        "succeeded": summary.succeeded,
        "failed": summary.failed,
        "errors": dict(summary.errors),
        "good": summary.good,
        "goodput_per_second": _short(summary.rate(summary.good)),
        "requests_per_second": _short(summary.rate(summary.succeeded)),
        "input_tokens": summary.input_tokens,
        "cached_tokens": summary.cached_tokens,
        "output_tokens": summary.output_tokens,
        "output_tokens_per_second": _short(summary.rate(summary.output_tokens)),
        **{name: _points(times) for name, times in summary.times.items()},
    }


def write_text(path: str, text: str) -> None:
    """Raises ResourceError."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"{path}: {error.strerror}", code="cannot_write") from None


def _points(times: Distribution) -> dict[str, float] | None:
    if not times:
        return None
    points = {f"p{percent:g}": times.percentile(percent) for percent in PERCENTILES}
    return {
        name: round(value, DIGITS) for name, value in {"mean": times.mean, **points, "max": times.values[-1]}.items()
    }


def _row(record: Record) -> dict[str, Any]:
    return {name: _short(getattr(record, name)) for name in _FIELDS}


def _short(value: Any) -> Any:
    return round(value, DIGITS) if isinstance(value, float) else value


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, DIGITS) for value in values]
