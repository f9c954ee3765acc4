"""EAGLE-3: one decoder layer over three states of the model and the next token's embedding. Source: arXiv 2503.01840.

g = fc(low | mid | high), the residual stream where three of the model's layers begin; later the layer's own output.
x = g + attention(norm(e) | norm(g)), x = x + mlp(norm(x)); head(norm(x)) proposes the token behind e's. It begins with
high for g, the model's own final norm and head, and a layer that adds nothing.
Keys: fc.weight, midlayer.{hidden_norm,input_layernorm,post_attention_layernorm}.weight, midlayer.self_attn.*,
midlayer.mlp.*, norm.weight, lm_head.weight.
"""

from __future__ import annotations

from typing import Any

import torch

from octavo.train.head import Batch, Head, output
from octavo.train.layers import GatedMLP, LayerShape, Path, PathAttention, RMSNorm
from octavo.train.order import Acceptance
from octavo.train.target import Target
from octavo.train.vocabulary import DraftVocabulary


class MidLayer(torch.nn.Module):
    def __init__(self, shape: LayerShape, made: torch.Generator) -> None:
        super().__init__()
        ones = torch.ones(shape.width)
        self.input_layernorm = RMSNorm(ones, shape.eps)
        self.hidden_norm = RMSNorm(ones, shape.eps)
        self.post_attention_layernorm = RMSNorm(ones, shape.eps)
        self.self_attn = PathAttention(shape, 2 * shape.width, made)
        self.mlp = GatedMLP(shape, made)

    def forward(self, embedded: torch.Tensor, g: torch.Tensor, path: Path) -> torch.Tensor:
        eaten = torch.cat((self.input_layernorm(embedded), self.hidden_norm(g)), -1)
        x = g + self.self_attn(eaten, path)
        found: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return found


class Eagle3(Head):
    def __init__(self, target: Target, vocabulary: DraftVocabulary, depth: int, seed: int) -> None:
        super().__init__(target, vocabulary, depth)
        self._shape = LayerShape.of(target.model)
        self._layers = target.tap_layers
        made = torch.Generator().manual_seed(seed)
        nothing = torch.zeros(self.width, self.width)
        self.fc = output(torch.cat((nothing, nothing, torch.eye(self.width)), 1))
        self.midlayer = MidLayer(self._shape, made)
        self.norm = RMSNorm(target.final_norm, self._shape.eps)
        self.lm_head = output(self.target_head)

    def logits(self, batch: Batch) -> list[torch.Tensor]:
        g, path, found = self.fc(batch.taps), Path([], []), []
        for step in range(1, self.depth + 1):
            g = self.midlayer(self.embedded(batch.moved(batch.ids, step)), g.float(), path)
            found.append(self.lm_head(self.norm(g[batch.rows])))
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.state_dict())

    def config(self, found: Acceptance) -> dict[str, Any]:
        own = {"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False}
        taps = {"eagle_aux_hidden_state_layer_ids": list(self._layers)}
        return self.stated("LlamaForCausalLMEagle3") | self._shape.config() | own | taps
