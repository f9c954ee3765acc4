"""The recurrent drafter: a small state that goes on by drafted tokens, beside one hidden state of the model.
Source: arXiv 2403.09919.

s_0 = 0, s_i = SiLU(W e(t + i) + U s_(i-1) + b), e the model's embedding of the token at t + i; blocks and a linear over
[h ; s_i] propose token t + 1 + i, h the hidden state of row t. The linear begins as the model's own head over h.
Keys: rnn_w.weight, rnn_u.{weight,bias}, lm_head.{block}.linear.{weight,bias}, lm_head.{blocks}.weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from octavo.train.head import Batch, Head, ResidualBlock, output
from octavo.train.order import Acceptance
from octavo.train.target import Target
from octavo.train.vocabulary import DraftVocabulary

BLOCKS = 2
BEAM = 2  # beams that config.json suggests: rows beyond a chain cost more than its own
SPREAD = 0.5  # of first weights, times the root of their columns: states neither die nor grow


class Recurrent(Head):
    def __init__(self, target: Target, vocabulary: DraftVocabulary, depth: int, seed: int) -> None:
        super().__init__(target, vocabulary, depth)
        width, made = self.width, torch.Generator().manual_seed(seed)
        self.rnn_w = output(torch.randn(width, width, generator=made) * SPREAD * self._unit() / width**0.5)
        self.rnn_u = torch.nn.Linear(width, width)
        torch.nn.init.normal_(self.rnn_u.weight, std=SPREAD / width**0.5, generator=made)
        torch.nn.init.zeros_(self.rnn_u.bias)
        last = functional.pad(self.target_head, (0, width))
        self.lm_head = torch.nn.Sequential(*(ResidualBlock(2 * width) for _ in range(BLOCKS)), output(last))

    def _unit(self) -> float:
        """Over the size of an embedding's numbers: what makes them 1."""
        return 1 / float(self.embedding.pow(2).mean().sqrt())

    def logits(self, batch: Batch) -> list[torch.Tensor]:
        hidden = batch.hidden[batch.rows]
        state, found = torch.zeros_like(hidden), []
        for step in range(1, self.depth + 1):
            token = self.embedded(batch.ahead(batch.ids, step))
            state = functional.silu(self.rnn_w(token) + self.rnn_u(state))
            found.append(self.lm_head(torch.cat((hidden, state), 1)))
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.state_dict())

    def config(self, found: Acceptance) -> dict[str, Any]:
        sizes = {"emb_dim": self.width, "exit_dim": 2 * self.width, "num_draft_layers": BLOCKS, "rnn": True}
        beams = {"beam_width": BEAM, "beam_length": self.depth}
        return self.stated("ReDrafterModel") | {"model_type": "recurrent_drafter"} | sizes | beams
