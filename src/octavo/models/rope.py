"""Frequencies of rotary embeddings: a RopeSpec becomes inv_freq, rounded to float32, and a factor on cos and sin.

Sources: RoFormer (arXiv 2104.09864), YaRN (2309.00071), Llama 3.1's scaling, LongRoPE (2402.13753). Operations and
roundings follow the float32 tensors in which checkpoints were trained. Rules that depend on the running length are
fixed here, from the longest length that is served, so that cached keys stay valid.
"""

from __future__ import annotations

import math
import struct

from octavo.errors import ConfigError
from octavo.rope_spec import RopeSpec


def frequencies(
    spec: RopeSpec, head_dim: int, max_position: int, theta: float, max_model_len: int | None = None
) -> tuple[tuple[float, ...], float]:
    """(inv_freq of each rotated pair, factor on cos and sin). theta: used where the spec is silent."""
    base = spec.theta or theta
    rotary = int(head_dim * spec.rotary_fraction)
    length = min(max_model_len or max_position, max_position)
    factor = 1.0
    if spec.type == "linear":
        inv_freq = [_f32(freq / _need(spec.factor, "factor")) for freq in _plain(base, rotary)]
    elif spec.type == "llama3":
        inv_freq = _llama3(spec, _plain(base, rotary))
    elif spec.type == "yarn":
        inv_freq, factor = _yarn(spec, base, rotary, max_position)
    elif spec.type == "dynamic":
        inv_freq = _plain(_stretched(spec, base, rotary, length), rotary)
    elif spec.type == "longrope":
        inv_freq, factor = _longrope(spec, base, rotary, length, max_position)
    else:
        inv_freq = _plain(base, rotary)
    if spec.freq_factors:
        if len(spec.freq_factors) != len(inv_freq):
            raise ConfigError(
                f"rope_freqs.weight holds {len(spec.freq_factors)} values for {len(inv_freq)} frequencies",
                param="rope_freqs.weight",
            )
        inv_freq = [_f32(freq / divisor) for freq, divisor in zip(inv_freq, spec.freq_factors, strict=True)]
    return tuple(inv_freq), factor


def _f32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def _need(value: float | None, name: str) -> float:
    if value is None:
        raise ConfigError(f"{name} is missing from the rope parameters", param=name)
    return value


def _powers(base: float, rotary: int) -> list[float]:
    """base ** (2 i / rotary) in float32."""
    try:
        return [_f32(base ** _f32(i / rotary)) for i in range(0, rotary, 2)]
    except OverflowError:
        raise ConfigError(f"rope_theta {base:g} is out of range", param="rope_theta") from None


def _plain(base: float, rotary: int) -> list[float]:
    return [_f32(1.0 / power) for power in _powers(base, rotary)]


def _llama3(spec: RopeSpec, plain: list[float]) -> list[float]:
    """Low frequencies are divided, high ones kept, the band between them blended."""
    factor, low = _need(spec.factor, "factor"), _need(spec.low_freq_factor, "low_freq_factor")
    high = _need(spec.high_freq_factor, "high_freq_factor")
    trained = _need(spec.original_max_position, "original_max_position_embeddings")
    scaled = []
    for freq in plain:
        wavelength = _f32(2 * math.pi / freq)
        if wavelength > trained / low:
            scaled.append(_f32(freq / factor))
        elif wavelength < trained / high:
            scaled.append(freq)
        else:
            blend = _f32(_f32(_f32(trained / wavelength) - low) / (high - low))
            scaled.append(_f32(_f32(_f32(_f32(1 - blend) * freq) / factor) + _f32(blend * freq)))
    return scaled


def _yarn(spec: RopeSpec, base: float, rotary: int, max_position: int) -> tuple[list[float], float]:
    """Frequencies that turn often are kept, slow ones divided, with a linear ramp between beta_fast and beta_slow."""
    trained = _need(spec.original_max_position, "original_max_position_embeddings")
    scale = spec.factor or max_position / trained
    low = _turning_dim(spec.beta_fast or 32.0, base, rotary, trained)
    high = _turning_dim(spec.beta_slow or 1.0, base, rotary, trained)
    if spec.truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, rotary - 1.0)
    if low == high:
        high += 0.001
    inv_freq = []
    for i, power in enumerate(_powers(base, rotary)):
        kept = _f32(1 - min(max(_f32(_f32(i - low) / (high - low)), 0.0), 1.0))
        divided, plain = _f32(1.0 / _f32(scale * power)), _f32(1.0 / power)
        inv_freq.append(_f32(_f32(divided * _f32(1 - kept)) + _f32(plain * kept)))
    return inv_freq, _yarn_factor(spec, scale)


def _turning_dim(turns: float, base: float, rotary: int, trained: float) -> float:
    """The (fractional) pair whose angle makes `turns` full turns over the trained length."""
    return (rotary * math.log(trained / (turns * 2 * math.pi))) / (2 * math.log(base))


def _yarn_factor(spec: RopeSpec, scale: float) -> float:
    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return yarn_mscale(scale, spec.mscale) / yarn_mscale(scale, spec.mscale_all_dim)
    return yarn_mscale(scale, 1.0)


def yarn_mscale(scale: float, mscale: float) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


def _stretched(spec: RopeSpec, base: float, rotary: int, length: int) -> float:
    """NTK scaling for a fixed length; the trained length and shorter ones are left alone."""
    trained = _need(spec.original_max_position, "original_max_position_embeddings")
    factor = _need(spec.factor, "factor")
    ratio = max(length, trained) / trained
    stretched: float = base * ((factor * ratio) - (factor - 1)) ** (rotary / (rotary - 2))
    return stretched


def _longrope(spec: RopeSpec, base: float, rotary: int, length: int, max_position: int) -> tuple[list[float], float]:
    """Divisors per frequency: the long list when more than the trained length is served."""
    trained = _need(spec.original_max_position, "original_max_position_embeddings")
    name, divisors = ("long_factor", spec.long_factor) if length > trained else ("short_factor", spec.short_factor)
    if len(divisors) != rotary // 2:
        raise ConfigError(f"{name} holds {len(divisors)} values for {rotary // 2} frequencies", param=name)
    inv_freq = [
        _f32(1.0 / _f32(_f32(divisor) * power)) for divisor, power in zip(divisors, _powers(base, rotary), strict=True)
    ]
    scale = spec.factor or max_position / trained
    default = 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(trained))
    return inv_freq, spec.attention_factor or default
