"""Codes and scales, and the words and blocks that hold them, against the formats' own rules restated."""

import gguf
import numpy as np
import pytest
import torch
from quantized import awq_words, stream

from octavo.quantize import awq, gptq, packing, smoothing
from octavo.quantize.calibrated import loss
from octavo.quantize.rounding import affine, nearest, symmetric, symmetric_scale


def weights(rows=24, columns=64, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def inputs(tokens=400, columns=64, seed=1):
    """Correlated, a few columns much larger than the rest."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, columns, generator=generator) @ torch.randn(columns, columns, generator=generator)
    x[:, 5] *= 30
    x[:, 41] *= 12
    return x


def test_words_are_a_stream_of_bits():
    codes = np.random.default_rng(0).integers(0, 16, (5, 64))
    assert (packing.words(torch.from_numpy(codes), 4).numpy() == stream(codes, 4)).all()
    codes = np.random.default_rng(1).integers(0, 256, (3, 16))
    assert (packing.words(torch.from_numpy(codes), 8).numpy() == stream(codes, 8)).all()


def test_awq_words_stand_in_its_order():
    codes = affine(weights(), 32)
    assert (packing.awq(codes)[".qweight"].numpy() == awq_words(codes.q.T.numpy())).all()
    assert (packing.awq(codes)[".qzeros"].numpy() == awq_words(codes.zero.T.numpy())).all()


@pytest.mark.parametrize(("bits", "pack", "kind"), [(4, packing.q4_blocks, "Q4_0"), (8, packing.q8_blocks, "Q8_0")])
def test_blocks_hold_exactly_the_values(bits, pack, kind):
    values = weights()
    values[3, :32] = 0
    codes = symmetric(values, bits, 32)
    held = gguf.quants.dequantize(pack(codes), gguf.GGMLQuantizationType[kind])
    assert (held == codes.values.numpy()).all() and not held[3, :32].any()


def test_a_searched_scale_loses_no_more_than_the_largest_number_over_seven():
    values = weights(200)
    lost = [
        (held - values).square().view(200, -1, 32).sum(-1)
        for held in (symmetric(values, 4, 32).values, nearest(values, 4, 32))
    ]
    assert lost[0].sum() < 0.8 * lost[1].sum()
    assert (lost[0] <= 1.02 * lost[1]).all()  # the scale is rounded to float16 afterwards


def test_columns_that_count_more_lose_less():
    values, shares = weights(200), torch.ones(64)
    shares[10] = 50
    heavy, even = (symmetric_scale(values, 4, 32, each) for each in (shares, None))

    def lost(scale):
        q = (values.view(200, 2, 32) / scale[..., None]).round().clamp(-8, 7) * scale[..., None]
        return float((q.view(200, 64) - values)[:, 10].square().sum())

    assert lost(heavy) < 0.6 * lost(even)


def test_codes_and_zero_points_are_in_range_for_odd_groups():
    values = weights()
    values[0] = values[0].abs()  # no number below zero
    values[1] = -values[1].abs()
    values[2] = 0
    values[3, :32] = 1e-9
    codes = affine(values, 32)
    assert codes.q.min() >= 0 and codes.q.max() <= 15 and codes.zero.min() >= 0 and codes.zero.max() <= 15
    assert torch.isfinite(codes.values).all() and not codes.values[2].any()
    assert (codes.values - values).abs().max() <= codes.scale.max() * 0.51


def test_gptq_beats_rounding_to_the_nearest_on_the_text():
    values, x = weights(48), inputs()
    h = (x.T @ x).double()
    codes = gptq.gptq(values, h, 4, 32)
    searched, plain = (loss(values, held, h) for held in (symmetric(values, 4, 32).values, nearest(values, 4, 32)))
    assert loss(values, codes.values, h) < 0.6 * min(searched, plain)
    assert codes.q.min() >= -8 and codes.q.max() <= 7
    again = gptq.gptq(values, h, 4, 32)
    assert (again.q == codes.q).all() and (again.scale == codes.scale).all()


def test_gptq_of_columns_that_have_nothing_in_common_is_plain_rounding():
    values = weights()
    codes = gptq.gptq(values, torch.eye(64, dtype=torch.float64), 4, 32)
    assert (codes.q == symmetric(values, 4, 32).q).all()


def test_gptq_takes_columns_that_the_text_never_uses():
    x = inputs()
    x[:, 7] = 0
    codes = gptq.gptq(weights(), (x.T @ x).double(), 4, 32)
    assert torch.isfinite(codes.values).all()


def test_awq_scales_and_clips_for_the_text():
    values, x = weights(48), inputs()
    answers = x @ values.T

    def lost(codes, scale):
        return float((x / scale @ codes.values.T - answers).norm() / answers.norm())

    scale = awq.scales([values], x, x.abs().mean(0), 32)
    plain, scaled = lost(affine(values, 32), 1), lost(affine(values * scale, 32), scale)
    both = lost(awq.clipped(values * scale, x / scale, 32), scale)
    assert scale[5] > 2 * scale.median() and scaled < 0.8 * plain and both <= scaled


def test_smoothing_makes_room_for_eight_bits():
    values, x = weights(48), inputs()
    answers = x @ values.T
    scale = smoothing.scales([values], x.abs().amax(0))
    plain = smoothing.tokens(x) @ smoothing.rows(values).values.T - answers
    smooth = smoothing.tokens(x / scale) @ smoothing.rows(values * scale).values.T - answers
    assert smooth.norm() < 0.7 * plain.norm()
