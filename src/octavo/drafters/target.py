"""What a drafter is given of the model that it drafts for: its configuration, its files, what the engine was told, and
of its program the values and weights that drafters share."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from octavo.backends import dtype_for
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.builder import Builder
from octavo.program.ir import Op, Program, Weight
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.fetch import resolve

LOGITS = "logits"


@dataclass(frozen=True)
class Target:
    """The checkpoint is open for as long as the engine loads, and so are those that were opened `beside` it."""

    model: ModelConfig
    checkpoint: Checkpoint
    config: EngineConfig
    opened: ExitStack = field(default_factory=ExitStack)

    def beside(self, name: str) -> Checkpoint:
        """Another one, as the user names it, its float matrices held as the target's are. Raises what errors.py lists
        for bad names and files."""
        checkpoint = open_checkpoint(resolve(name), matrices=matrices(self.config))
        self.opened.callback(checkpoint.close)
        return checkpoint

    @property
    def max_model_len(self) -> int:
        return self.config.max_model_len or self.model.max_position

    @cached_property
    def program(self) -> Program:
        """Plain, as its family writes it. Raises ConfigError for an encoder, which has no next token."""
        program = program_for(self.model, self.config.max_model_len)
        if LOGITS not in program.exports:
            raise ConfigError(f"{self.checkpoint.path}: an encoder generates nothing, so there is nothing to draft")
        return program

    @property
    def head(self) -> Op:
        """The linear that makes logits of the last hidden states."""
        writers = {name: op for op in self.program.ops for name in op.outs}
        op = writers[LOGITS]
        while op.kind != "linear":
            op = writers[op.ins[0]]
        return op

    @property
    def hidden(self) -> str:
        """The value [R, D] that the head eats: normed, of the rows whose logits are wanted. A tap."""
        return self.head.ins[0]

    @property
    def head_weight(self) -> Weight:
        """[V, D]"""
        return self.program.weights[self.head.weights[0]]

    @property
    def embedding(self) -> tuple[Weight, float]:
        """[V, D], and what its rows are multiplied with."""
        op = next(op for op in self.program.ops if op.kind == "embed" and op.ins == ("token",))
        scale = op.attrs["scale"]
        return self.program.weights[op.weights[0]], float(scale) if isinstance(scale, int | float) else 1.0


def matrices(config: EngineConfig) -> Literal["bf16", "f32"]:
    """What float matrices are held as."""
    return "f32" if dtype_for(config.executor, config.dtype) == "float32" else "bf16"


def shared(b: Builder, weight: Weight) -> str:
    """Declares a weight of the target in a drafter's program: it is held once."""
    b.weights[weight.name] = weight
    return weight.name
