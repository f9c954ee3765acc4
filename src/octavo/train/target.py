"""The model that heads draft for, as training needs it: which of its values heads eat, its embedding, its head and the
norm before it, in float32 from any checkpoint.

Legend: n rows, D hidden, V vocabulary, K draft vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import torch

from octavo.backends.reference.operators import OPERATORS
from octavo.backends.reference.tensors import to_float
from octavo.errors import UnsupportedError
from octavo.program.ir import Op
from octavo.runner.model import plain_program
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.match import match
from octavo.weights.stated import model_config

LOGITS = "logits"
PLAIN = ("linear", "norm", "cap")  # operators between the last hidden state and the logits that training can run


class Target:
    """last: the residual stream behind all layers; taps: where layers begin that EAGLE-3 listens to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        checkpoint = open_checkpoint(path, matrices="f32")
        try:
            self.model = model_config(checkpoint)
            self.program = plain_program(checkpoint, self.model)
            self.content_id = checkpoint.content_id
            self._tail = self._behind_layers()
            sources = match(self.program.weights, checkpoint, self.program.spare)
            named = {name for op in self._tail for name in op.weights}
            lookup = next(op for op in self.program.ops if op.kind == "embed" and op.ins == ("token",))
            if len(lookup.weights) > 1:
                raise UnsupportedError(f"{path}: heads for embeddings with an addend are not trained", param="model")
            named.add(lookup.weights[0])
            self._weights = {
                name: to_float(checkpoint.stored(sources[name], self.program.weights[name].prep, kind="f32").read())
                for name in named
            }
        finally:
            checkpoint.close()
        scale = lookup.attrs["scale"]
        self.embedding = self._weights[lookup.weights[0]] * float(scale if isinstance(scale, (int, float)) else 1.0)

    def _behind_layers(self) -> list[Op]:
        """Operators from the last hidden state on. Raises UnsupportedError for what is no decoder's."""
        ops = list(self.program.ops)
        at = next((n for n, op in enumerate(ops) if op.kind == "take" and op.ins[-1] == "logit_row"), None)
        if at is None or LOGITS not in self.program.exports or any(op.kind not in PLAIN for op in ops[at + 1 :]):
            raise UnsupportedError(f"{self.path}: {self.program.name}: heads are trained for decoders", param="model")
        self.last = ops[at].ins[0]
        return ops[at + 1 :]

    @property
    def hidden_size(self) -> int:
        return self.model.hidden_size

    @property
    def vocab_size(self) -> int:
        return len(self.head)

    @property
    def tap_layers(self) -> tuple[int, int, int]:
        """Layers before which EAGLE-3 taps the residual stream."""
        count = self.model.num_layers
        return min(2, count - 1), count // 2, max(count - 3, 0)

    @property
    def taps(self) -> tuple[str, ...]:
        """Raises UnsupportedError where the program does not call them so."""
        names = tuple(f"{layer}.x" for layer in self.tap_layers)
        for name in names:
            if name not in self.program.buffers:
                raise UnsupportedError(f"{self.path}: {self.program.name} has no value {name} to tap", param="kind")
        return names

    @property
    def head(self) -> torch.Tensor:
        """[V, D]"""
        return self._weights[next(op.weights[0] for op in self._tail if op.kind == "linear")]

    @property
    def final_norm(self) -> torch.Tensor:
        """[D], what the norm before the head multiplies with; ones where there is none."""
        norm = next((op for op in self._tail if op.kind == "norm"), None)
        if norm is None:
            return torch.ones(self.hidden_size)
        weight = self._weights[norm.weights[0]]
        return 1 + weight if norm.attrs["order"] == "gemma" else weight

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """[n, D] that the head eats, of the last residual stream."""
        for op in self._tail:
            if op.kind != "norm":
                break
            x = self._apply(op, x, [self._weights[name] for name in op.weights])
        return x

    def logits(self, hidden: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """f32 [n, K] of hidden states [n, D], of the tokens `kept` alone."""
        for op in self._tail:
            if op.kind != "norm":
                hidden = self._apply(op, hidden, [self._weights[name][kept] for name in op.weights])
        return hidden

    def _apply(self, op: Op, x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        result = OPERATORS[op.kind](op, [x], weights, None, None)  # type: ignore[arg-type]  # no caches, no header
        assert isinstance(result, torch.Tensor)
        return result
