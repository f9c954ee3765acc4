"""The mixture of experts that families share: a router, gated MLPs of which each row takes k, and one for every row.

Names are those of the generation of checkpoints with "mlp.experts.0.gate_proj.weight" (or all of a layer's in one
tensor), and of GGUF. Legend: T tokens, D hidden, E experts, F width of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.model_experts import ExpertSpec
from octavo.program import experts
from octavo.program.builder import Builder
from octavo.program.experts import Matrices, Routing
from octavo.program.ir import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """One layer's. hidden: D. choice_bias: a vector that is added to the scores for the choice alone. shared: the
    expert of every row, none, with a gate of its own, or plain; shared_name: of its module. older: (module, gate, up,
    down) in files of an older generation. gguf: the file is one."""

    hidden: int
    spec: ExpertSpec
    routing: Routing
    act: str
    choice_bias: bool = False
    shared: Literal["none", "gated", "plain"] = "none"
    shared_name: str = "shared_expert"
    older: tuple[str, str, str, str] | None = None
    gguf: bool = False

    def write(self, b: Builder, layer: int, h: str) -> str:
        """f32 [T, D] of h [T, D]."""
        e, d, at = self.spec.count, self.hidden, f"{layer}"
        router = self._weight(b, layer, "router", (e, d), "gate.weight", "ffn_gate_inp", plain=True)
        bias = None
        if self.choice_bias:
            hf, gguf = f"model.layers.{layer}.mlp.gate.e_score_correction_bias", f"blk.{layer}.exp_probs_b.bias"
            bias = b.weight(f"{at}.choice_bias", (e,), hf=hf, gguf=gguf)
        logits = experts.linear_f32(b, f"{at}.rl", h, router)
        chosen = experts.route(b, f"{at}.ids", f"{at}.shares", logits, self.routing, bias)
        y = experts.mixture(b, at, h, chosen, self._matrices(b, layer), act=self.act)
        if self.shared == "none":
            return y
        return b.add(f"{at}.both", y, self._shared(b, layer, h))

    def _matrices(self, b: Builder, layer: int) -> Matrices:
        e, d, f = self.spec.count, self.hidden, self.spec.width
        names = {}
        for i, (name, shape) in enumerate({"gate": (e, f, d), "up": (e, f, d), "down": (e, d, f)}.items()):
            hf, older = f"experts.{{e}}.{name}_proj.weight", None
            if self.older is not None:
                older = f"experts.{{e}}.{self.older[1 + i]}.weight"
            names[name] = self._weight(b, layer, f"e{name}", shape, hf, f"ffn_{name}_exps", older=older)
        return Matrices(**names)

    def _shared(self, b: Builder, layer: int, h: str) -> str:
        """f32 [T, D] of the expert that every row goes to."""
        d, f, stem = self.hidden, self.spec.shared_width, self.shared_name

        def linear(name: str, x: str, shape: tuple[int, int]) -> str:
            w = self._weight(b, layer, f"s{name}", shape, f"{stem}.{name}_proj.weight", f"ffn_{name}_shexp")
            return b.linear(f"{layer}.s{name}", x, w)

        y = linear(
            "down", b.glu(f"{layer}.sf", linear("gate", h, (f, d)), linear("up", h, (f, d)), act=self.act), (d, f)
        )
        if self.shared == "plain":
            return y
        prep: tuple[tuple[Scalar, ...], ...] = (("row",),) if self.gguf else ()
        hf, gguf = f"model.layers.{layer}.mlp.{stem}_gate.weight", f"blk.{layer}.ffn_gate_inp_shexp.weight"
        w = b.weight(f"{layer}.wsg", (1, d), hf=hf, gguf=gguf, prep=prep, plain=True)
        return experts.gate(b, f"{layer}.sy", y, experts.linear_f32(b, f"{layer}.sl", h, w))

    def _weight(
        self,
        b: Builder,
        layer: int,
        name: str,
        shape: tuple[int, ...],
        hf: str,
        gguf: str,
        *,
        older: str | None = None,
        plain: bool = False,
    ) -> str:
        newer = f"model.layers.{layer}.mlp.{hf}"
        names: tuple[str, ...] = (newer,)
        if self.older is not None:
            names = (f"model.layers.{layer}.{self.older[0]}.{older or hf}", newer)
        source = f"blk.{layer}.{gguf}.weight"
        first = source.replace("_exps.", ".{e}.")  # files of GGUF's first mixtures: a tensor an expert
        others = (*names[1:], first) if first != source else names[1:]
        return b.weight(f"{layer}.w{name}", shape, hf=names[0], gguf=source, plain=plain, others=others)
