"""Tiny checkpoints with a module that drafts, made of transformers' layers, and what it says in plain torch."""

import json
from pathlib import Path

import numpy as np
import torch
from models.tiny import as_values, twin
from safetensors.numpy import save_file

MEMBERS = {"deepseek-v3": 2, "glm-dsa": 2, "qwen3next": 3}  # which layer of the twin the module's is like
APART = 60  # tokens of a head that was trained apart
CALM = ("o_proj", "down_proj", "out_proj")  # what a branch adds


class Oracle:
    """model: the transformers twin. The module's parts beside it, random; agreeing: it looks at the next token and
    little else, as the model then does too, so its drafts are often right."""

    def __init__(self, member: str, *, agreeing: bool = False) -> None:
        self.member, self.agreeing = member, agreeing
        self.model, mapping = twin(member)
        self.mapping = {**mapping, "num_nextn_predict_layers": 1, "torch_dtype": "float32"}
        config, like = self.model.config, MEMBERS.get(member, 0)
        if member == "glm-dsa":  # a full index and experts
            config = type(config)(**{**config.to_dict(), "first_k_dense_replace": 0, "mlp_layer_types": None})
            config._attn_implementation = config._experts_implementation = "eager"
        core, width = self.model.model, config.hidden_size
        norm = type(core.norm)
        torch.manual_seed(17)
        self.layer = type(core.layers[like])(config, like).float().eval()
        self.enorm, self.hnorm, self.norm = (norm(width, eps=config.rms_norm_eps) for _ in range(3))
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        with torch.no_grad():
            for part in (self.layer, self.enorm, self.hnorm, self.norm, self.fc):
                for name, weight in part.named_parameters():
                    values = as_values(name, weight.shape)
                    weight.copy_(values - 1 if member == "qwen3next" and "norm" in name else values)
        self.tensors = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.own = self._own()
        self.apart: torch.Tensor | None = None
        if agreeing:
            self._agree(width)

    def _own(self) -> dict[str, torch.Tensor]:
        qwen, layers = self.member == "qwen3next", self.model.config.num_hidden_layers
        at = "mtp.layers.0." if qwen else f"model.layers.{layers}."
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
        if not qwen:
            names = ("enorm", "hnorm", "shared_head.norm", "eh_proj")
        parts = zip(names, (self.enorm, self.hnorm, self.norm, self.fc), strict=True)
        own = {f"{'mtp.' if qwen else at}{name}.weight": part.weight.detach() for name, part in parts}
        return own | {at + name: value for name, value in self.layer.state_dict().items()}

    def _agree(self, width: int) -> None:
        for tensors in (self.tensors, self.own):
            for name, value in tensors.items():
                if any(calm in name for calm in CALM):
                    value *= 0.03
        for name, value in self.own.items():
            if name.endswith(("eh_proj.weight", "mtp.fc.weight")):
                value *= 0.03
                value[:, :width] += torch.eye(width) * 2.0
        self.tensors["lm_head.weight"] *= 2.5
        self.tensors["model.embed_tokens.weight"] *= 3.0
        for ends in (("model.norm.weight",), ("shared_head.norm.weight", "mtp.norm.weight"), ("enorm.weight",)):
            for tensors in (self.tensors, self.own):
                for name, value in tensors.items():
                    if name.endswith(ends):
                        value.fill_(0.0 if self.member == "qwen3next" else 1.0)

    def write(self, folder: Path) -> str:
        held = {name: np.ascontiguousarray(value.numpy()) for name, value in (self.tensors | self.own).items()}
        save_file(held, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.mapping))
        return str(folder)

    def write_apart(self, folder: Path) -> str:
        """The module as a head's folder of its own, over every third token; the target stands beside it."""
        config, layers = self.model.config, self.model.config.num_hidden_layers
        torch.manual_seed(23)
        self.apart = torch.randn(APART, config.hidden_size) * 2.5 / config.hidden_size**0.5
        shifts = np.arange(APART, dtype=np.int64) * 2
        if self.agreeing:
            self.apart = self.tensors["lm_head.weight"][::3][:APART].clone()
        own = self.own | {f"model.layers.{layers}.shared_head.head.weight": self.apart}
        held = {name: np.ascontiguousarray(value.numpy()) for name, value in own.items()}
        save_file({**held, "d2t": shifts}, folder / "model.safetensors")
        stated = {"architectures": ["MTPModel"], "model_type": "mtp", "draft_vocab_size": APART}
        (folder / "config.json").write_text(json.dumps({**self.mapping, **stated, "chain_hidden_post_norm": True}))
        return str(folder)

    @torch.no_grad()
    def logits(self, tokens: list[int], drafts: list[int]) -> np.ndarray:
        """What the module says after tokens and drafts, the tokens being those that the model has seen or sampled."""
        model, count = self.model, len(tokens) - 1
        hidden = model.model(torch.tensor([tokens[:-1]])).last_hidden_state
        rows, y = torch.zeros(1, 0, hidden.shape[-1]), hidden
        for step in range(len(drafts) + 1):
            fresh = tokens[1:] if step == 0 else drafts[step - 1 : step]
            e = model.model.embed_tokens(torch.tensor([fresh]))
            joined = torch.cat([self.enorm(e), self.hnorm(y[:, -len(fresh) :])], dim=-1)
            rows = torch.cat([rows, self.fc(joined)], dim=1)
            y = self.norm(self._layer(rows))
        assert rows.shape[1] == count + len(drafts)
        head = model.lm_head.weight if self.apart is None else self.apart
        return (head @ y[0, -1]).numpy()

    def _layer(self, rows: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(rows.shape[1])[None]
        mask = torch.full((1, 1, rows.shape[1], rows.shape[1]), float("-inf")).triu(1)
        turned = self.model.model.rotary_emb(rows, positions)
        out = self.layer(rows, attention_mask=mask, position_embeddings=turned, position_ids=positions)
        return out[0] if isinstance(out, tuple) else out
