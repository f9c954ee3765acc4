"""gptq, awq and smoothquant: matrices in the order in which the program eats them, each by what the text shows it.

gptq         a matrix sees what the matrices before it, already rounded, let through
awq          sees the values of the model as it was; a gated layer's `up` waits for the scales of `down`
smoothquant  sees the same
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from octavo.program.ir import Op
from octavo.quantize import Progress, awq, gptq, packing, smoothing
from octavo.quantize.folder import Folder, folder_name
from octavo.quantize.layers import Sharing
from octavo.quantize.rounding import Codes, affine, nearest
from octavo.quantize.scheme import Written
from octavo.quantize.subject import Subject

SAMPLES = 512  # rows of what a layer eats on which awq and smoothquant choose
PACKERS = {"gptq": packing.gptq, "awq": packing.awq, "smoothquant": packing.bytewise}


class Rounder:
    """What all three share: who eats what, where results go. `watch` is given to the walk."""

    scheme = ""

    def __init__(
        self, subject: Subject, sharings: dict[str, Sharing], out: Folder, group: int, progress: Progress
    ) -> None:
        self.subject = subject
        self.sharings = sharings
        self.out = out
        self.group = group
        self.written: list[Written] = []
        self._progress = progress
        self._sizes = {name: w.shape[0] * w.shape[1] for name, w in subject.matrices.items()}
        self._done = 0

    def weight(self, name: str) -> torch.Tensor:
        """What the walk goes on with."""
        return self.subject.values(name)

    def watch(self, op: Op, ins: Sequence[torch.Tensor]) -> None:
        if op.kind == "linear" and op.weights[0] in self._sizes:
            self.meet(op.weights[0], op.ins[0], ins[0])

    def meet(self, name: str, value: str, x: torch.Tensor) -> None:
        """A matrix and what it eats, x [T, n], called `value`."""
        raise NotImplementedError

    def finish(self, name: str, codes: Codes, error: float, plain: float) -> None:
        self.out.put(folder_name(self.subject, name), PACKERS[self.scheme](codes))
        n = codes.q.shape[1]
        spare = {"gptq": 16, "awq": 20, "smoothquant": 16}[self.scheme]  # bits of a group besides its codes
        bits = (8 if self.scheme == "smoothquant" else 4) + spare / (n // codes.scale.shape[1])
        self.written.append(Written(folder_name(self.subject, name), bits, error, plain))
        self._done += self._sizes[name]
        self._progress(self._done, sum(self._sizes.values()))


class Gptq(Rounder):
    scheme = "gptq"

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._seen: tuple[str, torch.Tensor] | None = None
        self._rounded: dict[str, torch.Tensor] = {}

    def weight(self, name: str) -> torch.Tensor:
        return self._rounded.pop(name) if name in self._rounded else super().weight(name)

    def meet(self, name: str, value: str, x: torch.Tensor) -> None:
        if self._seen is None or self._seen[0] != value:
            self._seen = value, (x.T @ x).double()
        h, weight = self._seen[1], self.subject.values(name)
        codes = gptq.gptq(weight, h, 4, self.group)
        self._rounded[name] = codes.values
        errors = [loss(weight, held, h) for held in (codes.values, nearest(weight, 4, self.group))]
        self.finish(name, codes, *errors)


def loss(weight: torch.Tensor, held: torch.Tensor, h: torch.Tensor) -> float:
    """|X (held - weight)^T| / |X weight^T|, h = X^T X."""
    away = (held - weight).double()
    lost, whole = (((each @ h) * each).sum() for each in (away, weight.double()))
    return float((lost.clamp(min=0) / whole.clamp(min=1e-30)).sqrt())


class Scaled(Rounder):
    """Those that scale columns first. What is known of a value is found at the first matrix that eats it."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._known: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # value -> sample, scale
        self._waiting: dict[str, tuple[torch.Tensor, torch.Tensor, float]] = {}  # up's matrix -> what round gets
        self._ups = {s.before[0] for s in self.sharings.values() if s.rule == "rows"} & {*self._sizes}

    def choose(self, weights: Sequence[torch.Tensor], x: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """[n]: what the columns of all the weights that eat x are multiplied by."""
        raise NotImplementedError

    def plain(self, weight: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """What a weight answers that is rounded as it is."""
        raise NotImplementedError

    def round(self, name: str, weight: torch.Tensor, sample: torch.Tensor, plain: float) -> None:
        """weight, its columns scaled; sample: of what it eats then."""
        raise NotImplementedError

    def meet(self, name: str, value: str, x: torch.Tensor) -> None:
        sharing = self.sharings[value]
        if value not in self._known:
            self._begin(value, sharing, x)
        sample, scale = self._known[value]
        weight = self.subject.values(name)
        plain = relative(self.plain(weight, sample), sample @ weight.T)
        if name in self._ups:
            self._waiting[name] = weight * scale, sample / scale, plain
        else:
            self.round(name, weight * scale, sample / scale, plain)
        if name == sharing.matrices[-1]:
            del self._known[value]

    def _begin(self, value: str, sharing: Sharing, x: torch.Tensor) -> None:
        """Scales what eats x, and what stands before the other way."""
        sample, scale = x[:: -(-len(x) // SAMPLES)], torch.ones(x.shape[1])
        if sharing.rule != "none":
            scale = self.choose([self.subject.values(name) for name in sharing.matrices], x, sample)
        if sharing.rule == "rows":
            weight, eaten, plain = self._waiting.pop(sharing.before[0])
            self.round(sharing.before[0], weight / scale[:, None], eaten, plain)
        for name in sharing.vectors:
            values = self.subject.values(name)
            values = (1 + values) / scale - 1 if sharing.rule == "offset" else values / scale
            self.out.change(folder_name(self.subject, name), values)
        self._known[value] = sample, scale


class Awq(Scaled):
    scheme = "awq"

    def choose(self, weights: Sequence[torch.Tensor], x: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        return awq.scales(weights, sample, x.abs().mean(0), self.group)

    def plain(self, weight: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        return sample @ affine(weight, self.group).values.T

    def round(self, name: str, weight: torch.Tensor, sample: torch.Tensor, plain: float) -> None:
        codes = awq.clipped(weight, sample, self.group)
        self.finish(name, codes, relative(sample @ codes.values.T, sample @ weight.T), plain)


class SmoothQuant(Scaled):
    """Errors count what activations of eight bits a row lose."""

    scheme = "smoothquant"

    def choose(self, weights: Sequence[torch.Tensor], x: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        return smoothing.scales(weights, x.abs().amax(0))

    def plain(self, weight: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        return smoothing.tokens(sample) @ smoothing.rows(weight).values.T

    def round(self, name: str, weight: torch.Tensor, sample: torch.Tensor, plain: float) -> None:
        codes = smoothing.rows(weight)
        error = relative(smoothing.tokens(sample) @ codes.values.T, sample @ weight.T)
        self.finish(name, codes, error, plain)


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).square().sum().sqrt() / wanted.square().sum().sqrt().clamp(min=1e-30))


ROUNDERS: Mapping[str, type[Rounder]] = {"gptq": Gptq, "awq": Awq, "smoothquant": SmoothQuant}
