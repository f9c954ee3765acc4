"""The training loop: AdamW over batches whose order is a function of the seed, resumable at any step to the bit.

training/state.safetensors   parameters and both moments of each, as of the last step kept
training/progress.json       that step, the losses so far and what the run depends on
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from octavo.errors import BadFileError, UsageError
from octavo.train import losses, tensors
from octavo.train.features import Features
from octavo.train.head import Batch, Head
from octavo.train.order import HeadOrder
from octavo.train.target import Target

STATE, PROGRESS = "training/state.safetensors", "training/progress.json"
WARMUP, LEAST_LR = 0.03, 0.1  # shares of all steps, of the highest rate
CLIP = 1.0  # of the gradient's length
BETAS, WEIGHT_DECAY = (0.9, 0.95), 0.0
KEEP_EVERY = 60.0  # seconds
MOMENTS = ("exp_avg", "exp_avg_sq")


class Course:
    """One run: the head, its optimizer, and how far it is. numbers: of the sequences to learn from."""

    def __init__(self, order: HeadOrder, head: Head, numbers: Sequence[int], depends: dict[str, Any]) -> None:
        self.order, self.head, self.numbers = order, head, tuple(numbers)
        self.depends = depends
        self.step = 0
        self.seconds = 0.0
        self.history: list[tuple[int, float]] = []
        self._optimizer = torch.optim.AdamW(
            head.parameters(), lr=order.highest_lr, betas=BETAS, weight_decay=WEIGHT_DECAY, foreach=False
        )

    @property
    def epoch_steps(self) -> int:
        return -(-len(self.numbers) // self.order.batch)

    @property
    def steps(self) -> int:
        return self.epoch_steps * self.order.epochs

    @property
    def done(self) -> bool:
        return self.step >= self.steps

    def loss_name(self) -> str:
        """Of the next step. Losses of overlaps begin with cross-entropy: they teach little where nothing overlaps."""
        cold = self.order.loss in ("tv", "e2e") and self.step < self.order.cold_start * self.steps
        return "soft" if cold else self.order.loss

    def run(self, features: Features, target: Target, advance: Callable[[str, int, int], None]) -> None:
        """To the end, or until the time is over. What was done is kept in either case, also when it is interrupted."""
        begun = kept = time.monotonic()
        limit = math.inf if self.order.minutes is None else 60 * self.order.minutes
        earlier = self.seconds
        try:
            while not self.done and time.monotonic() - begun < limit:
                examples = [features[number] for number in self._chosen()]
                self._learn(Batch.of(examples, self.head.depth), target)
                self.seconds = earlier + time.monotonic() - begun
                advance(f"{self.loss_name()} {self.history[-1][1]:.3f}", self.step, self.steps)
                if time.monotonic() - kept > KEEP_EVERY:
                    self.keep()
                    kept = time.monotonic()
        finally:
            self.keep()

    # ---- a step
    def _chosen(self) -> Sequence[int]:
        epoch, place = divmod(self.step, self.epoch_steps)
        shuffled = list(self.numbers)
        random.Random(f"{self.order.seed}:{epoch}").shuffle(shuffled)
        return shuffled[place * self.order.batch : (place + 1) * self.order.batch]

    def _learn(self, batch: Batch, target: Target) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.order.bf16):
            logits = self.head.logits(batch)
        given = losses.aims(target, self.head.vocabulary, batch)
        loss = losses.loss(self.loss_name(), logits, given, self.order.step_decay)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), CLIP, foreach=False)
        self._optimizer.step()
        self.step += 1
        self.history.append((self.step, float(loss.detach())))

    def _rate(self) -> float:
        """Warm-up, then a cosine to a tenth."""
        warm = max(round(WARMUP * self.steps), 1)
        share = max(self.step - warm, 0) / max(self.steps - warm, 1)
        down = LEAST_LR + (1 - LEAST_LR) * (1 + math.cos(math.pi * share)) / 2
        return self.order.highest_lr * min((self.step + 1) / warm, 1.0) * down

    # ---- on disk
    def keep(self) -> None:
        """State first: the state beside a progress.json is of its step or of a later one."""
        named = dict(self.head.named_parameters())
        held = {name: parameter.detach() for name, parameter in named.items()}
        for name, parameter in named.items():
            state = self._optimizer.state.get(parameter, {})
            held |= {f"{name}:{moment}": state[moment] for moment in MOMENTS if moment in state}
        held["step"] = torch.tensor([self.step])
        (self.order.out / STATE).parent.mkdir(exist_ok=True)
        tensors.write(self.order.out / STATE, held)
        stated = {"depends": self.depends, "step": self.step, "seconds": self.seconds, "history": self.history}
        path = self.order.out / PROGRESS
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(stated))
        os.replace(beside, path)

    def restore(self) -> None:
        """Goes on where `keep` was last, if it ever was. Raises UsageError for a run of something else."""
        stated = _begun(self.order.out)
        if stated is None:
            return
        for name, value in self.depends.items():
            if stated["depends"].get(name) != value:
                was = stated["depends"].get(name)
                raise UsageError(f"{self.order.out}: was begun with {name} {was}, not {value}", param="resume")
        held = tensors.read(self.order.out / STATE)
        self.step = int(held["step"])
        self.seconds = float(stated["seconds"])
        self.history = [(int(step), float(loss)) for step, loss in stated["history"] if step <= self.step]
        with torch.no_grad():
            for name, parameter in self.head.named_parameters():
                parameter.copy_(held[name])
                if f"{name}:{MOMENTS[0]}" in held:
                    moments = {moment: held[f"{name}:{moment}"] for moment in MOMENTS}
                    self._optimizer.state[parameter] = {"step": torch.tensor(float(self.step)), **moments}


def _begun(out: Path) -> dict[str, Any] | None:
    """progress.json of a run. Raises BadFileError where it is none."""
    path = out / PROGRESS
    if not path.exists():
        return None
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stated["depends"], dict) or not isinstance(stated["history"], list):
            raise KeyError("depends")
    except (OSError, ValueError, KeyError, TypeError):
        raise BadFileError(f"{path}: does not say how far training was", code="bad_json") from None
    return dict(stated)
