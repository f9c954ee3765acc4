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


class Parts:
    """One module. config, like: its layer is as that one of such a model."""

    def __init__(self, config, like, norm, seed, *, offset=0.0):
        """offset: of the norms in the layer."""
        width = config.hidden_size
        torch.manual_seed(seed)
        self.enorm, self.hnorm, self.norm = (norm(width, eps=config.rms_norm_eps) for _ in range(3))
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        self.layer = like(config)
        for part in self.all:
            for name, weight in part.named_parameters():
                weight.data = as_values(name, weight.shape) - offset * ("norm" in name)

    @property
    def all(self):
        return self.layer, self.enorm, self.hnorm, self.norm, self.fc


class Oracle:
    """model: the transformers twin. The modules beside it, random; agreeing: they look at the next token and little
    else, as the model then does too, so their drafts are often right. shares: the index of the first draft is for all.
    """

    def __init__(self, member: str, *, agreeing: bool = False, modules: int = 1, shares: bool = False) -> None:
        self.member, self.agreeing, self.shares = member, agreeing, shares
        self.model, mapping = twin(member)
        self.mapping = {**mapping, "num_nextn_predict_layers": modules, "torch_dtype": "float32"}
        if shares:
            self.mapping["index_share_for_mtp_iteration"] = True
        config, like = self.model.config, MEMBERS.get(member, 0)
        if member == "glm-dsa":  # a full index and experts
            config = type(config)(**{**config.to_dict(), "first_k_dense_replace": 0, "mlp_layer_types": None})
            config._attn_implementation = config._experts_implementation = "eager"
        core = self.model.model
        layer = type(core.layers[like])

        def made(config):
            return layer(config, like).float().eval()

        self.modules = [
            Parts(config, made, type(core.norm), 17 + place, offset=float(member == "qwen3next"))
            for place in range(modules)
        ]
        self.tensors = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.own = {name: value for place, each in enumerate(self.modules) for name, value in self._own(place, each)}
        self.apart: torch.Tensor | None = None
        if agreeing:
            self._agree(config.hidden_size)

    def _own(self, place: int, module: Parts):
        qwen, layer = self.member == "qwen3next", self.model.config.num_hidden_layers + place
        at = "mtp.layers.0." if qwen else f"model.layers.{layer}."
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
        if not qwen:
            names = ("enorm", "hnorm", "shared_head.norm", "eh_proj")
        parts = zip(names, (module.enorm, module.hnorm, module.norm, module.fc), strict=True)
        yield from ((f"{'mtp.' if qwen else at}{name}.weight", part.weight.detach()) for name, part in parts)
        yield from ((at + name, value) for name, value in module.layer.state_dict().items())

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
        """What is said after tokens and drafts, the tokens being those that the modules have seen or sampled."""
        model, count, text = self.model, len(tokens) - 1, [*tokens, *drafts]
        y = model.model(torch.tensor([tokens[:-1]])).last_hidden_state
        rows: list[torch.Tensor] = []  # what the layer of each module eats
        for step in range(len(drafts) + 1):
            turn, place = divmod(step, len(self.modules))
            module = self.modules[place]
            fresh = text[step + 1 :][:count] if turn == 0 else drafts[step - 1 : step]
            e = model.model.embed_tokens(torch.tensor([fresh]))
            fed = module.fc(torch.cat([module.enorm(e), module.hnorm(y[:, -len(fresh) :])], dim=-1))
            if turn == 0:
                rows.append(fed)
            else:
                fed = rows[place] = torch.cat([rows[place], fed], dim=1)
            y = module.norm(self._layer(module.layer, fed, count))
        head = model.lm_head.weight if self.apart is None else self.apart
        return (head @ y[0, -1]).numpy()

    def _layer(self, layer, rows: torch.Tensor, count: int) -> torch.Tensor:
        """count: rows of true tokens."""
        positions = torch.arange(rows.shape[1])[None]
        mask = torch.full((1, 1, rows.shape[1], rows.shape[1]), float("-inf")).triu(1)
        turned = self.model.model.rotary_emb(rows, positions)
        indexer = layer.self_attn.indexer if self.shares else None
        if indexer is not None:
            indexer.forward = lambda *args, **named: seeded(type(indexer).forward(indexer, *args, **named), count)
        out = layer(rows, attention_mask=mask, position_embeddings=turned, position_ids=positions)
        return out[0] if isinstance(out, tuple) else out


def seeded(chosen: torch.Tensor, count: int) -> torch.Tensor:
    """Rows behind the first `count` take what the last of those chose, as far as it could see."""
    seed = chosen[:, count - 1 : count]
    chosen[:, count:] = torch.where(seed < count, seed, 0)
    return chosen
