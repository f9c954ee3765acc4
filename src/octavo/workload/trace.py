"""Recorded workloads: Azure's LLM inference traces (CSV) and Mooncake's (JSON lines, with hashes of shared blocks).

Azure: TIMESTAMP,ContextTokens,GeneratedTokens. Mooncake: timestamp (ms), input_length, output_length, hash_ids, of
which each names 512 tokens of the input and all that stand before them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from octavo.errors import BadFileError, MissingFileError
from octavo.workload.job import Job

BLOCK = 512  # tokens that one hash of Mooncake names
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_trace(path: str | Path, *, time_scale: float = 1.0, length_scale: float = 1.0) -> list[Job]:
    """Jobs in order of arrival, the first at 0. time_scale 2: in half the time. length_scale 0.5: half as long.

    Raises MissingFileError, BadFileError that names the line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise MissingFileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadFileError(f"{path}: not UTF-8 (offset {error.start})") from None
    if not lines:
        raise BadFileError(f"{path}: empty")
    rows = _mooncake(path, lines, length_scale) if lines[0].startswith("{") else _azure(path, lines, length_scale)
    jobs = sorted(rows, key=lambda job: job.at)
    if not jobs:
        raise BadFileError(f"{path}: no requests in it")
    first = jobs[0].at
    return [Job((job.at - first) / time_scale, job.input_tokens, job.output_tokens, job.shared) for job in jobs]


def _azure(path: str | Path, lines: list[str], scale: float) -> Iterator[Job]:
    rows = csv.DictReader(lines)
    if rows.fieldnames is None or not set(AZURE) <= set(rows.fieldnames):
        raise BadFileError(f"{path}: neither JSON lines nor a CSV with the columns {', '.join(AZURE)}")
    for number, row in enumerate(rows, 2):
        try:
            at, context, generated = (row[name] for name in AZURE)
            moment, _, fraction = at.partition(".")
            seconds = datetime.fromisoformat(moment[:19] + "+00:00").timestamp()
            digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
            job = Job(seconds + float(f"0.{digits or 0}"), _scaled(int(context), scale), _scaled(int(generated), scale))
        except (TypeError, ValueError, AttributeError):
            raise BadFileError(f"{path}:{number}: not a time and two counts of tokens") from None
        yield job


def _mooncake(path: str | Path, lines: list[str], scale: float) -> Iterator[Job]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: dict[str, Any] = json.loads(line)
            length, ids = int(row["input_length"]), [int(each) for each in row.get("hash_ids") or ()]
            job = Job(float(row["timestamp"]) / 1000, _scaled(length, scale), _scaled(int(row["output_length"]), scale))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadFileError(f"{path}:{number}: not timestamp, input_length, output_length and hash_ids") from None
        yield Job(job.at, job.input_tokens, job.output_tokens, _runs(ids, job.input_tokens, _scaled(BLOCK, scale)))


def _runs(ids: list[int], length: int, block: int) -> tuple[tuple[int, int], ...]:
    """The last block holds what is left, which may be nothing after scaling."""
    sizes = [min(block, length - place * block) for place in range(len(ids))]
    return tuple((each, size) for each, size in zip(ids, sizes, strict=True) if size > 0)


def _scaled(tokens: int, scale: float) -> int:
    if tokens < 0:
        raise ValueError(tokens)
    return max(1, round(tokens * scale))
