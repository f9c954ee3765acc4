"""Texts and hidden states of a model on disk, computed once: what heads of every kind learn from.

    about.json     what all of it depends on; another order is refused
    texts.jsonl    {"ids", "begin"} a line; "texts" in about.json says when all are there
    00000.safetensors ...   SHARD sequences each, rows one after another:
        hidden BF16 [n, D]   what the model's head eats        taps BF16 [n, 3 D]   what EAGLE-3 eats, where asked for
        mass F32 [n]   log of the sum of exponentials of all logits        best I32 [n]   the most likely token

With `mass` the probability of any token is that of its own logit alone: the head's other rows are not needed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from octavo.config import EngineConfig
from octavo.drafters.null import NullDrafter
from octavo.engine.vocabulary import load_tokenizer
from octavo.errors import BadFileError, UsageError
from octavo.quantize.outputs import check_room
from octavo.request import Row, StepPlan, TableUpdate
from octavo.runner.runner import Runner
from octavo.text.chat import ChatTemplate
from octavo.train import tensors
from octavo.train.generation import continued
from octavo.train.order import HeadOrder
from octavo.train.target import LOGITS, Target
from octavo.train.texts import Material, Reader, TokenRun, material

SHARD = 16
ABOUT, TEXTS = "about.json", "texts.jsonl"
CHUNK = 256  # tokens of a step
Advance = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence of L tokens. taps: [L, 3 D], or no columns."""

    ids: torch.Tensor  # [L]
    begin: int
    hidden: torch.Tensor  # f32 [L, D]
    taps: torch.Tensor
    mass: torch.Tensor  # [L]
    best: torch.Tensor  # [L]


class Features:
    """Complete after `prepared`. Sequences are read from disk as they are asked for."""

    def __init__(self, folder: Path, runs: Sequence[TokenRun]) -> None:
        self.runs = list(runs)
        self._shards = [tensors.StoredTensors(_shard(folder, n)) for n in range(-(-len(self.runs) // SHARD))]
        self._begins: list[int] = []
        for number in range(len(self.runs)):
            before = 0 if number % SHARD == 0 else self._begins[-1] + len(self.runs[number - 1].ids)
            self._begins.append(before)

    @property
    def tokens(self) -> int:
        return sum(len(run.ids) for run in self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, number: int) -> Example:
        run, shard, begin = self.runs[number], self._shards[number // SHARD], self._begins[number]
        span = begin, begin + len(run.ids)
        hidden = shard.rows("hidden", *span).float()
        taps = shard.rows("taps", *span).float() if "taps" in shard.headers else hidden[:, :0]
        mass, best = shard.rows("mass", *span), shard.rows("best", *span).long()
        return Example(torch.tensor(run.ids), run.begin, hidden, taps, mass, best)


def prepared(order: HeadOrder, target: Target, *, taps: bool, advance: Advance) -> Features:
    """Does what is not there yet; makes the folder once the data is read. Raises UsageError where it holds something
    else, ResourceError for a full disk."""
    folder, given = order.feature_folder, material(order.data)
    choices = order.text_choices() | {"seed": order.seed, "model": target.content_id, "data": given.digest}
    about = _about(folder, choices, taps)
    if not about["texts"]:
        about = _written(order, folder, about, given, advance)
    runs = _read_runs(folder / TEXTS)
    if len(runs) != about["texts"]:
        raise BadFileError(f"{folder / TEXTS}: holds {len(runs)} sequences, not {about['texts']}", code="bad_log")
    width = target.hidden_size * (4 if about["taps"] else 1)
    missing = [n for n in range(-(-len(runs) // SHARD)) if not _shard(folder, n).exists()]
    if missing:
        rows = sum(len(run.ids) for n in missing for run in runs[n * SHARD : (n + 1) * SHARD])
        check_room(folder / ABOUT, rows * (2 * width + 8))
        longest = max(len(run.ids) for run in runs)
        with closing(_Extractor(order, target, longest, target.taps if about["taps"] else ())) as extractor:
            for done, number in enumerate(missing):
                advance("hidden states", done, len(missing))
                tensors.write(_shard(folder, number), extractor.shard(runs[number * SHARD : (number + 1) * SHARD]))
    return Features(folder, runs)


def _about(folder: Path, choices: dict[str, Any], taps: bool) -> dict[str, Any]:
    """What the folder is of, or what a new one is to be of."""
    path = folder / ABOUT
    if not path.exists():
        return {**choices, "taps": taps, "texts": 0}
    try:
        about = dict(json.loads(path.read_text(encoding="utf-8")))
        differing = next((name for name in choices if about[name] != choices[name]), None)
        if differing is None and about["taps"] < taps:
            differing = "taps"
    except (ValueError, TypeError, KeyError, OSError):
        raise BadFileError(f"{path}: does not say what the folder holds", code="bad_json") from None
    if differing is not None:
        what = "without taps" if differing == "taps" else f"of another {differing}"
        raise UsageError(f"{folder}: holds hidden states {what}; name another folder or remove it", param="features")
    return about


def _written(
    order: HeadOrder, folder: Path, about: dict[str, Any], given: Material, advance: Advance
) -> dict[str, Any]:
    """All sequences in texts.jsonl, those that are there already kept; what the folder is of then."""
    tokenizer = load_tokenizer(order.model)
    template = ChatTemplate.started(tokenizer)
    try:
        encode = None if template is None else lambda messages: template.encode(tokenizer, messages)
        reader = Reader(order, tokenizer, encode)
        prompts = reader.prompts(given) if order.generate else []
        held = _read_runs(folder / TEXTS)[: len(prompts)] if prompts else reader.windows(given)
    finally:
        if template is not None:
            template.close()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).write_text(json.dumps(about, indent=1))
    _write_runs(folder / TEXTS, held, "w")
    count = len(held)
    if count < len(prompts):
        advance("answers", count, len(prompts))
        for runs in continued(order, prompts, count):
            _write_runs(folder / TEXTS, runs, "a")
            count += len(runs)
            advance("answers", count, len(prompts))
    about = {**about, "texts": count}
    (folder / ABOUT).write_text(json.dumps(about, indent=1))
    return about


def _write_runs(path: Path, runs: Sequence[TokenRun], mode: Literal["w", "a"]) -> None:
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps({"ids": run.ids, "begin": run.begin}) + "\n" for run in runs)


def _read_runs(path: Path) -> list[TokenRun]:
    """As far as lines are whole: the last one may have been broken off."""
    runs: list[TokenRun] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            one = json.loads(line)
            runs.append(TokenRun(tuple(map(int, one["ids"])), int(one["begin"])))
        except (ValueError, TypeError, KeyError):
            break
    return runs


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.safetensors"


class _Taps(NullDrafter):
    """Proposes nothing and listens to values of the target."""

    def __init__(self, taps: Sequence[str]) -> None:
        self.taps = tuple(dict.fromkeys(taps))


class _Extractor:
    """The model with its values kept, for one sequence at a time."""

    def __init__(self, order: HeadOrder, target: Target, longest: int, taps: Sequence[str]) -> None:
        blocks = -(-longest // 16)
        config = EngineConfig(
            model=str(target.path),
            executor="reference" if order.executor == "reference" else "native",
            dtype="float32" if order.executor == "reference" else "auto",
            threads=order.threads,
            max_num_seqs=1,
            max_num_batched_tokens=CHUNK,
            max_logit_rows=CHUNK,
            max_model_len=longest,
            num_blocks=blocks,
        )
        self._target, self._taps = target, tuple(taps)
        self._runner = Runner.open(config, lambda _: _Taps((target.last, *taps)), lambda done, total: None)
        self._tables = tuple(
            TableUpdate(0, group, 0, tuple(range(1, blocks + 1))) for group in range(len(self._runner.loaded.groups))
        )
        self._number = 0

    @torch.no_grad()
    def shard(self, runs: Sequence[TokenRun]) -> dict[str, torch.Tensor]:
        parts: list[dict[str, torch.Tensor]] = []
        for run in runs:
            parts += [self._chunk(run.ids, begin) for begin in range(0, len(run.ids), CHUNK)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _chunk(self, ids: tuple[int, ...], begin: int) -> dict[str, torch.Tensor]:
        row = Row("text", 0, begin, ids[begin : begin + CHUNK], 0, sample=False)
        self._runner.launch(StepPlan(self._number, (row,), tables=self._tables if begin == 0 else ()))
        self._number += 1
        logits = self._view(LOGITS)
        mass, best = torch.logsumexp(logits, 1), logits.argmax(1).int()
        found = {"hidden": self._target.hidden(self._view(self._target.last)).bfloat16(), "mass": mass, "best": best}
        if self._taps:
            found["taps"] = torch.cat([self._view(name) for name in self._taps], dim=1).bfloat16()
        self._runner.finish()
        return found

    def _view(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(self._runner.view(name), dtype=np.float32))

    def close(self) -> None:
        self._runner.close()
