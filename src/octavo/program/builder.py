"""What model files call: each method appends one plain operator and returns the name of what it writes.

Shapes are checked here, so that a wrong model fails at load with the operator's name, not in a kernel.
Legend: T tokens, R logit rows, D hidden, F intermediate, V vocabulary, H query heads, K KV heads, d head size.
"""

from __future__ import annotations

from octavo.errors import ConfigError
from octavo.program.ir import Axis, Buffer, DType, N, Op, Program, R, Scalar, T, Weight
from octavo.types import CacheTensor, KVGroup

PLAIN: DType = "f32"
HEADER_BUFFERS = {
    "token": (T,),
    "position": (T,),
    "index": (T,),
    "request": (T,),
    "adapter": (T,),
    "source_row": (T,),
    "logit_row": (R,),
}


class Builder:
    """Collects one program. Operators of one idea that few families share stand in files of their own and use `op`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ops: list[Op] = []
        self.buffers: dict[str, Buffer] = {}
        self.weights: dict[str, Weight] = {}
        self.groups: dict[str, KVGroup] = {}
        self.exports: list[str] = []
        self.spare: list[str] = []
        for header, shape in HEADER_BUFFERS.items():
            self.buffers[header] = Buffer(header, shape, "i32", "header")

    # ---- declarations
    def weight(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        hf: str,
        gguf: str,
        prep: tuple[tuple[Scalar, ...], ...] = (),
        plain: bool = False,
        others: tuple[str, ...] = (),
        floats: bool = False,
    ) -> str:
        """Declares a weight (once; the same declaration again is the same weight, as for tied embeddings)."""
        weight = Weight(name, shape, {"hf": hf, "gguf": gguf}, prep, plain, others, floats)
        if self.weights.setdefault(name, weight) != weight:
            raise ConfigError(f"{self.name}: weight {name} is declared twice with different shapes or sources")
        return name

    def group(self, group: KVGroup) -> str:
        self.groups.setdefault(group.name, group)
        return group.name

    def cache(self, group: str, name: str, elements: int, dtype: str = "f32") -> str:
        """A cache tensor of `elements` per token on `group`; f32 until lowering says what the machine stores."""
        old = self.groups[group]
        tensors = (*old.tensors, CacheTensor(name, elements, dtype))
        self.groups[group] = KVGroup(old.name, old.rule, old.window, old.tail, tensors)
        self.buffers[name] = Buffer(name, (elements,), "f32", "cache")
        return name

    def export(self, name: str) -> None:
        """Keeps a value until the next launch under its own name."""
        old = self.buffers[name]
        self.buffers[name] = Buffer(old.name, old.shape, old.dtype, "export")
        self.exports.append(name)

    def build(self) -> Program:
        return Program(
            self.name,
            tuple(self.ops),
            dict(self.buffers),
            dict(self.weights),
            tuple(self.groups.values()),
            tuple(self.exports),
            spare=tuple(self.spare),
        )

    # ---- operators
    def embed(self, out: str, token: str, weight: str, *, scale: float = 1.0, addend: str | None = None) -> str:
        """f32 [T, D]: rows of W [V, D], chosen by an i32 header buffer [T], times scale, plus a vector [D]."""
        width = self.weights[weight].shape[1]
        if addend is not None and self.weights[addend].shape not in ((width,), (1, width)):
            raise ConfigError(f"{out}: {self.weights[addend].shape} cannot be added to rows of {width}")
        weights = (weight,) if addend is None else (weight, addend)
        return self._op("embed", out, (token,), (T, width), weights, scale=scale)

    def feed(
        self,
        name: str,
        width: int,
        of: str = "target",
        *,
        then: tuple[tuple[str, str], ...] = (),
        dtype: DType = PLAIN,
    ) -> str:
        """[T, width]: row source_row[t] of what program `of` of the session exports as `name`, as it stood when the
        run began; where that is this program, of its run before. then: further (export, program), whose rows are
        numbered on: the next rows below those. program/feeds.py.
        """
        sources = tuple(f"{program}/{export}" for export, program in ((name, of), *then))
        for source in sources:
            self.buffers[source] = Buffer(source, (T, width), dtype, "foreign")
        return self._op("feed", f"{name}.fed", (*sources, "source_row"), (T, width), dtype=dtype)

    def take(self, out: str, x: str, rows: str) -> str:
        """[M, ...]: rows of x, chosen by an i32 header buffer [M]."""
        shape = (self.at(rows).shape[0], *self.at(x).shape[1:])
        return self._op("take", out, (x, rows), shape)

    def norm(
        self,
        out: str,
        x: str,
        weight: str | None,
        *,
        eps: float,
        rule: str = "rms",
        order: str = "llama",
        heads: int = 0,
        bias: str | None = None,
        dtype: DType = "f32",
    ) -> str:
        """Norm over the last axis, or over each head's share of it when heads > 0; weight and bias are [width / heads].

        rule: rms | layer (less the mean first) | l2 (times 1 / sqrt(sum + eps), without a weight).
        order: where the cast to the activation type stands: llama | fp32_mul | gemma (docs/program.md).
        """
        width = fixed_width(self.at(x))
        if heads and width % heads:
            raise ConfigError(f"{out}: norm of {heads} heads does not divide {width}")
        weights = tuple(name for name in (weight, bias) if name is not None)
        for name in weights:
            if self.weights[name].shape != (width // max(heads, 1),):
                raise ConfigError(f"{out}: norm weight {self.weights[name].shape} does not match width {width}")
        if (weight is None) != (rule == "l2") or (bias is not None and rule != "layer"):
            raise ConfigError(f"{out}: a norm of rule {rule} has other weights than {weights}")
        attrs: dict[str, Scalar] = {"eps": eps, "rule": rule, "order": order, "heads": heads}
        return self._op("norm", out, (x,), self.at(x).shape, weights, dtype, **attrs)

    def linear(self, out: str, x: str, weight: str, bias: str | None = None) -> str:
        """f32 [*, m] = x [*, n] W[m, n]^T (+ bias [m])."""
        m, n = self.weights[weight].shape
        if fixed_width(self.at(x)) != n:
            raise ConfigError(f"{out}: linear expects width {n}, {x} has {fixed_width(self.at(x))}")
        weights = (weight,) if bias is None else (weight, bias)
        if bias is not None and self.weights[bias].shape != (m,):
            raise ConfigError(f"{out}: bias {self.weights[bias].shape} does not match {m} rows")
        return self._op("linear", out, (x,), (self.at(x).shape[0], m), weights)

    def add(self, out: str, a: str, b: str) -> str:
        self._same(out, a, b)
        return self._op("add", out, (a, b), self.at(a).shape)

    def concat(self, out: str, a: str, b: str) -> str:
        """[*, n + m], columns of a first."""
        rows = self.at(a).shape[0]
        return self._op("concat", out, (a, b), (rows, fixed_width(self.at(a)) + fixed_width(self.at(b))))

    def glu(self, out: str, gate: str, up: str, *, act: str = "silu", alpha: float = 0.0, limit: float = 0.0) -> str:
        """act [*, F] = f(gate) * up, f = silu | gelu_tanh; or clamped: (u + 1) g sigmoid(alpha g) of g = gate, at most
        limit, and u = up within -limit and limit."""
        self._same(out, gate, up)
        if act not in ("silu", "gelu_tanh", "clamped"):
            raise ConfigError(f"{out}: no gated activation {act}", code="unsupported", param="hidden_act")
        clamp: dict[str, Scalar] = {"alpha": alpha, "limit": limit} if act == "clamped" else {}
        self.op("glu", (out,), (gate, up), (self.at(gate).shape,), (), ("act",), act=act, **clamp)
        return out

    def act(self, out: str, x: str, *, act: str) -> str:
        """act [*, F] = f(x), f = silu | gelu_tanh | gelu."""
        return self._op("act", out, (x,), self.at(x).shape, dtype="act", act=act)

    def cap(self, out: str, x: str, *, cap: float) -> str:
        """cap tanh(x / cap)"""
        return self._op("cap", out, (x,), self.at(x).shape, cap=cap)

    def pool(self, out: str, x: str, *, mode: str) -> str:
        """f32 [N, D] of x [T, D]: each request's last row of the step, its first (cls), or the mean of them all."""
        return self._op("pool", out, (x,), (N, fixed_width(self.at(x))), mode=mode)

    def rope_angles(self, out: str, position: str, *, inv_freq: tuple[float, ...], factor: float = 1.0) -> str:
        """f32 [T, 2r]: cos then sin of position * inv_freq[r], times factor."""
        return self._op("rope_angles", out, (position,), (T, 2 * len(inv_freq)), inv_freq=inv_freq, factor=factor)

    def rope(self, out: str, x: str, angles: str, *, heads: int, rotary: int) -> str:
        """Half-split rotation of the first `rotary` dims of each head."""
        width = fixed_width(self.at(x))
        if fixed_width(self.at(angles)) != rotary or width % heads or width // heads < rotary:
            raise ConfigError(f"{out}: {heads} heads of {width} do not rotate {rotary} dims by {angles}")
        return self._op("rope", out, (x, angles), self.at(x).shape, heads=heads, rotary=rotary)

    def kv_write(self, out: str, k: str, v: str, cache_k: str, cache_v: str, *, kv_heads: int) -> str:
        """Writes k and v [T, K d] into the caches at each token's index. Returns the token that attention takes."""
        for values, cache in ((k, cache_k), (v, cache_v)):
            if self.at(values).shape != (T, *self.at(cache).shape) or fixed_width(self.at(values)) % kv_heads:
                raise ConfigError(f"{out}: {values} does not fill {cache} with {kv_heads} heads")
        return self._op("kv_write", out, (k, v), (), dtype="token", cache_k=cache_k, cache_v=cache_v, kv_heads=kv_heads)

    def attention(
        self,
        out: str,
        q: str,
        kv: str,
        *,
        cache_k: str,
        cache_v: str,
        heads: int,
        kv_heads: int,
        scale: float,
        window: int = 0,
        cap: float = 0.0,
        causal: bool = True,
        sinks: str | None = None,
    ) -> str:
        """act [T, H d]: causal attention of each row over its own request's cache, as far as its own index.

        window W > 0: only the last W keys, the row's own among them. cap c > 0: scores s become c tanh(s / c).
        sinks [H]: a further logit of each head's softmax, unscaled, whose value is zero.
        Not causal: as far as the last token of its request in the step, which must be the whole request.
        """
        if window and not causal:
            raise ConfigError(f"{out}: a window needs causal attention", code="unsupported")
        width, cached = fixed_width(self.at(q)), fixed_width(self.at(cache_k))
        if heads % kv_heads or width * kv_heads != cached * heads:
            raise ConfigError(f"{out}: {heads} heads of {width} do not fit {kv_heads} KV heads of {cached}")
        if sinks is not None and self.weights[sinks].shape != (heads,):
            raise ConfigError(f"{out}: {sinks} is not one sink a head")
        return self._op(
            "attention",
            out,
            (q, kv),
            self.at(q).shape,
            () if sinks is None else (sinks,),
            dtype="act",
            cache_k=cache_k,
            cache_v=cache_v,
            heads=heads,
            kv_heads=kv_heads,
            scale=scale,
            window=window,
            cap=cap,
            causal=causal,
        )

    # ---- what operators of other files are written with
    def op(
        self,
        kind: str,
        outs: tuple[str, ...],
        ins: tuple[str, ...],
        shapes: tuple[tuple[Axis, ...], ...],
        weights: tuple[str, ...] = (),
        dtypes: tuple[DType, ...] = (),
        **attrs: Scalar,
    ) -> None:
        """Appends one operator; dtypes: of its outputs, all f32 when not given."""
        for name in ins:
            self.at(name)
        for out, shape, dtype in zip(outs, shapes, dtypes or [PLAIN] * len(outs), strict=True):
            if out in self.buffers:
                raise ConfigError(f"{self.name}: {out} is written twice")
            self.buffers[out] = Buffer(out, shape, dtype)
        self.ops.append(Op(kind, ins, outs, weights, attrs))

    def at(self, name: str) -> Buffer:
        if name not in self.buffers:
            raise ConfigError(f"{self.name}: {name} is read, and nothing has written it")
        return self.buffers[name]

    # ---- inside
    def _op(
        self,
        kind: str,
        out: str,
        ins: tuple[str, ...],
        shape: tuple[Axis, ...],
        weights: tuple[str, ...] = (),
        dtype: DType = "f32",
        **attrs: Scalar,
    ) -> str:
        self.op(kind, (out,), ins, (shape,), weights, (dtype,), **attrs)
        return out

    def _same(self, out: str, a: str, b: str) -> None:
        if self.at(a).shape != self.at(b).shape:
            raise ConfigError(f"{out}: shapes {self.at(a).shape} and {self.at(b).shape} differ")


def fixed_width(buffer: Buffer) -> int:
    last = buffer.shape[-1]
    if not isinstance(last, int):
        raise ConfigError(f"{buffer.name} has no fixed width")
    return last
