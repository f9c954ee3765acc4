"""Drafts that are chosen with the target's own noise: how often they are its choice, beside the optimum 1 - TV.

Both take the argmax of log p + noise, of the same noise: token i is the choice of both with the chance
1 / sum_j max(p_j / p_i, q_j / q_i), and so the acceptance is at least (1 - TV) / (1 + TV) (arXiv 2408.07978).
"""

import math

import numpy as np
import pytest
from chance import random_chances

from octavo import _native

SIZE, DRAWS = 48, 3000


def pair(sharp, apart):
    """Two distributions, the second of the first one's logits, disturbed by so much."""
    rng = np.random.default_rng(round(100 * (sharp + apart)))
    p = random_chances(rng, SIZE, sharp=sharp)
    q = p * np.exp(apart * rng.standard_normal(SIZE))
    return p, q / q.sum()


def coupled(p, q):
    ratios = np.maximum(p[None, :] / p[:, None], q[None, :] / q[:, None])
    return float((1 / ratios.sum(1)).sum())


def optimum(p, q):
    return float(np.minimum(p, q).sum())


# (sharpness, disturbance) -> (acceptance with the same noise, the optimum): docs/speculation.md has them.
FIGURES = {(2.0, 0.5): (0.809, 0.856), (2.0, 1.0): (0.499, 0.561), (2.0, 3.0): (0.259, 0.333)}


@pytest.mark.parametrize("shape", FIGURES)
def test_the_same_noise_nearly_reaches_the_optimum(shape):
    p, q = pair(*shape)
    same, best = coupled(p, q), optimum(p, q)
    assert (same, best) == pytest.approx(FIGURES[shape], abs=0.005)
    assert best / (2 - best) <= same <= best
    hits = 0
    for index in range(DRAWS):
        noise = np.array([_native.gumbel_noise(77, index, token, 0) for token in range(SIZE)])
        hits += int(np.argmax(np.log(p) + noise) == np.argmax(np.log(q) + noise))
    assert hits / DRAWS == pytest.approx(same, abs=4 * math.sqrt(0.25 / DRAWS))


def test_noise_apart_is_far_from_it():
    p, q = pair(2.0, 0.5)
    assert float((p * q).sum()) < 0.6 * coupled(p, q)


def test_a_draft_of_the_same_distribution_is_always_the_choice():
    p, _ = pair(2.0, 0.5)
    assert coupled(p, p) == pytest.approx(1.0)
