"""Multi-token prediction as DeepSeek-V3 has it: one further decoder layer behind the model. Source: arXiv 2412.19437.

h' = eh_proj(enorm(e) | hnorm(h)), h the state that the model's head eats, later that of this layer's head; a Llama's
layer over h'; shared_head.head(shared_head.norm(.)) proposes the token behind e's. It begins as the model's own head
over h, with a layer that adds nothing.
Keys, behind model.layers.{layers of the model}.: enorm.weight, hnorm.weight, eh_proj.weight, input_layernorm.weight,
self_attn.*, post_attention_layernorm.weight, mlp.*, shared_head.norm.weight, shared_head.head.weight.
"""

from __future__ import annotations

from typing import Any

import torch

from octavo.train.head import Batch, Head, output
from octavo.train.layers import GatedMLP, LayerShape, Path, PathAttention, RMSNorm
from octavo.train.order import Acceptance
from octavo.train.target import Target
from octavo.train.vocabulary import DraftVocabulary


class SharedHead(torch.nn.Module):
    def __init__(self, norm: RMSNorm, head: torch.nn.Linear) -> None:
        super().__init__()
        self.norm = norm
        self.head = head


class MTPHead(Head):
    def __init__(self, target: Target, vocabulary: DraftVocabulary, depth: int, seed: int) -> None:
        super().__init__(target, vocabulary, depth)
        shape = self._shape = LayerShape.of(target.model)
        self._place = target.model.num_layers
        made, ones = torch.Generator().manual_seed(seed), torch.ones(self.width)
        self.enorm, self.hnorm = RMSNorm(ones, shape.eps), RMSNorm(ones, shape.eps)
        self.eh_proj = output(torch.cat((torch.zeros(self.width, self.width), torch.eye(self.width)), 1))
        self.input_layernorm = RMSNorm(ones, shape.eps)
        self.self_attn = PathAttention(shape, self.width, made)
        self.post_attention_layernorm = RMSNorm(ones, shape.eps)
        self.mlp = GatedMLP(shape, made)
        size = target.final_norm.pow(2).mean().sqrt()  # of h, whose direction hnorm keeps
        self.shared_head = SharedHead(RMSNorm(ones * size, shape.eps), output(self.target_head))

    def logits(self, batch: Batch) -> list[torch.Tensor]:
        h, path, found = batch.hidden, Path([], []), []
        for step in range(1, self.depth + 1):
            embedded = self.embedded(batch.moved(batch.ids, step))
            x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(h)), -1)).float()
            x = x + self.self_attn(self.input_layernorm(x), path)
            x = x + self.mlp(self.post_attention_layernorm(x))
            h = self.shared_head.norm(x)
            found.append(self.shared_head.head(h[batch.rows]))
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        return {f"model.layers.{self._place}.{name}": tensor for name, tensor in self.state_dict().items()}

    def config(self, found: Acceptance) -> dict[str, Any]:
        own = {"model_type": "mtp", "num_hidden_layers": self._place, "num_nextn_predict_layers": 1}
        return self.stated("MTPModel") | self._shape.config() | own | {"chain_hidden_post_norm": True}
