"""What is asked of a training run, the kinds and losses that there are, and what a run reports. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STDLIB = "stdlib"  # as data: the documentation inside Python's own library
QUESTIONS = "questions"  # and ordinary questions to a chat model (questions.py)


@dataclass(frozen=True, slots=True)
class Kind:
    """depth: tokens that it learns to propose in a row. lr: the highest learning rate. decay: weight of a step over the
    one before."""

    depth: int
    lr: float
    decay: float
    help: str


KINDS: Mapping[str, Kind] = {
    "medusa": Kind(4, 1e-3, 0.8, "a head for each of the next tokens, all from one hidden state"),
    "recurrent": Kind(5, 1e-3, 0.8, "a state that goes on by drafted tokens, beside one hidden state"),
    "eagle3": Kind(5, 5e-4, 0.8, "one decoder layer over three states of the model and the next token"),
    "mtp": Kind(3, 5e-4, 0.8, "one decoder layer behind the model's last, as DeepSeek's"),
}
LOSSES: Mapping[str, str] = {
    "soft": "cross-entropy with the model's distribution over the draft vocabulary",
    "hard": "cross-entropy with the next token of the text",
    "tv": "1 less the overlap of both distributions, step by step",
    "e2e": "1 less the share of drafts that come true in a row: products of overlaps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOrder:
    """model: as users name it. data: a text, a folder of texts, a request log (.jsonl), `stdlib` or `questions`.

    tokens: of text in all, held-out included. window: most tokens of a sequence. generate: tokens that the model
    itself writes behind each prompt of `prompt` tokens, 0: the text as it is. chat: share of the prompts that are
    messages in the model's template. features: where texts and hidden states are kept, None: in `out`.
    executor: what computes them.
    depth, lr, decay: None: the kind's own. batch: sequences a step. draft_vocab: rows of the draft head, 0: all.
    cold_start: share of the steps that soft cross-entropy begins, for losses of overlaps.
    minutes: stop after so long, to be resumed. bf16: products of training in bfloat16. bits: of the matrices as they
    are written.
    verify: prompts that the engine answers with the head in the end.
    """

    model: str
    kind: str
    data: str
    out: Path
    tokens: int = 200_000
    window: int = 512
    generate: int = 0
    prompt: int = 64
    chat: float = 0.0
    temperature: float = 0.7
    features: Path | None = None
    executor: str = "native"
    depth: int | None = None
    draft_vocab: int = 4096
    loss: str = "soft"
    cold_start: float = 0.5
    epochs: int = 2
    batch: int = 4
    lr: float | None = None
    decay: float | None = None
    bf16: bool = True
    bits: int = 16
    seed: int = 0
    threads: int | None = None
    minutes: float | None = None
    verify: int = 8
    resume: bool = False

    @property
    def feature_folder(self) -> Path:
        return self.out / "features" if self.features is None else self.features

    @property
    def steps_ahead(self) -> int:
        return KINDS[self.kind].depth if self.depth is None else self.depth

    @property
    def step_decay(self) -> float:
        return KINDS[self.kind].decay if self.decay is None else self.decay

    @property
    def highest_lr(self) -> float:
        return KINDS[self.kind].lr if self.lr is None else self.lr

    def text_choices(self) -> dict[str, Any]:
        """What texts and hidden states depend on, beside the model and the data themselves."""
        names = ("tokens", "window", "generate", "prompt", "chat", "temperature", "executor")
        return {name: getattr(self, name) for name in names}

    def training_choices(self) -> dict[str, Any]:
        """What the weights depend on beside that. Threads change the order of sums in torch, and so the last bits."""
        own = {"depth": self.steps_ahead, "lr": self.highest_lr, "decay": self.step_decay}
        names = ("kind", "draft_vocab", "loss", "cold_start", "epochs", "batch", "bf16", "seed", "threads")
        return {name: getattr(self, name) for name in names} | own


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of held-out text, teacher-forced, step by step: overlap of the distributions (what sampling accepts), how often
    the most likely tokens agree (what greedy decoding accepts), and tokens a step in both, the target's own among them.
    ranks: per step how often its first, second, ... choice is the model's first."""

    overlap: tuple[float, ...] = ()
    agreement: tuple[float, ...] = ()
    sampled_length: float = 1.0
    greedy_length: float = 1.0
    ranks: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Verified:
    """Answers of the engine with the head as its drafter. steps: that verified any draft; length: tokens that such a
    step gave; accepted_at: how many of them accepted a draft at depth 1, 2, ..., as a share."""

    temperature: float
    tokens: int
    steps: int
    proposed: int
    length: float
    accepted_at: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HeadReport:
    """done: False where the time was over before the last step. history: (step, loss) pairs. covered: share of the
    text's tokens that the draft vocabulary holds. acceptance, verified: none before the end."""

    done: bool
    step: int
    steps: int
    sequences: int
    tokens: int
    parameters: int
    covered: float
    seconds: float
    acceptance: Acceptance = field(default_factory=Acceptance)
    verified: tuple[Verified, ...] = ()
    history: tuple[tuple[int, float], ...] = ()

    def figures(self) -> dict[str, Any]:
        return asdict(self)
