"""A session that is nothing but a head: the logits that a sampler reads where they were computed."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.backends import executor_for
from octavo.backends.port import Limits
from octavo.program.builder import Builder
from octavo.request import Row
from octavo.runner.batch import HeaderWriter
from octavo.weights.kinds import Tensor

WIDTH = 64


def bf16(values: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Head:
    """rows: [count, WIDTH], what the head sees of token i after a norm; matrix: [vocab, WIDTH]."""

    def __init__(self, rows: np.ndarray, matrix: np.ndarray, *, isa: str | None = None, threads: int = 1) -> None:
        count = len(rows)
        b = Builder("main")
        b.embed("x", "token", b.weight("rows", rows.shape, hf="", gguf=""))
        b.norm("h", b.take("last", "x", "logit_row"), b.weight("norm", (WIDTH,), hf="", gguf=""), eps=1e-6, dtype="act")
        b.linear("logits", "h", b.weight("head", matrix.shape, hf="", gguf=""))
        b.export("logits")
        plain = b.build()
        tensors = [
            ("rows", Tensor("bf16", rows.shape, bf16(rows))),
            ("norm", Tensor("f32", (WIDTH,), np.ones(WIDTH, np.float32))),
            ("head", Tensor("bf16", matrix.shape, bf16(matrix))),
        ]
        executor = executor_for("native")
        program = executor.lower(plain, {"rows": "bf16", "norm": "f32", "head": "bf16"})
        limits = Limits(count, count, count, 16, count + 1, 16)
        self._session = executor.open({"main": program}, lambda: iter(tensors), limits, threads=threads, isa=isa)
        self._writer = HeaderWriter(count, count, count)

    def run(self, tokens: list[int]) -> tuple[Any, np.ndarray]:
        """The logits of these rows as the sampler takes them from a session, and as an array of their own."""
        header = self._writer.write([Row(str(i), i, 0, (token,), 0, True) for i, token in enumerate(tokens)])
        self._session.run("main", header)
        return self._session.logits("logits"), self._session.view("logits").copy()
