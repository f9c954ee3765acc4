"""The checkpoint that is quantized: its program, and the values of its weights as float32."""

from __future__ import annotations

from pathlib import Path

import torch

from octavo.backends.reference.tensors import to_float
from octavo.errors import UnsupportedError
from octavo.program.ir import Weight
from octavo.runner.model import plain_program
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.match import match
from octavo.weights.stated import model_config

TURNED = (
    "transpose",
    "columns",
    "row",
    "flatten_heads",
    "transpose_heads",
    "taps",
)  # of preparation: rows are not the file's


class Subject:
    """sources: weight -> name of its tensor, or of a stack of them. heads: weights that make the logits. tables: those
    whose rows are looked up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = open_checkpoint(path, matrices="f32")
        self.model = model_config(self.checkpoint)
        if self.model.quantization:
            self.checkpoint.close()
            raise UnsupportedError(f"{path}: is quantized already ({self.model.quantization})", param="model")
        self.program = plain_program(self.checkpoint, self.model)
        self.sources = match(self.program.weights, self.checkpoint, self.program.spare)
        self._users: dict[str, set[str]] = {}
        for weight, source in self.sources.items():
            place = self.checkpoint.find(source)
            for tensor in place.names if place is not None else ():
                self._users.setdefault(tensor, set()).add(weight)
        ops = self.program.ops
        self.heads = {op.weights[0] for op in ops if op.kind == "linear" and {*op.outs} & {*self.program.exports}}
        self.tables = {op.weights[0] for op in ops if op.kind == "embed"}

    @property
    def matrices(self) -> dict[str, Weight]:
        """Weights of layers that linears eat, dense or of experts, in the program's order."""
        eaten = [op.weights[0] for op in self.program.ops if op.kind in ("linear", "expert_linear")]
        named = {name: self.program.weights[name] for name in eaten if name not in self.heads | self.tables}
        return {name: weight for name, weight in named.items() if not weight.plain and not weight.floats}

    def users(self, tensor: str) -> set[str]:
        """Weights that are made of a tensor of the file."""
        return self._users.get(tensor, set())

    def values(self, name: str) -> torch.Tensor:
        """A weight as the program eats it."""
        weight = self.program.weights[name]
        return to_float(self.checkpoint.stored(self.sources[name], weight.prep, kind="f32").read())

    def stored_values(self, tensor: str) -> torch.Tensor:
        """A tensor of the file."""
        return to_float(self.checkpoint.stored(tensor, kind="f32").read())

    def close(self) -> None:
        self.checkpoint.close()
