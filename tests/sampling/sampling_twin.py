"""The slow, obvious twin of native sampling: numpy float64, full sorts, every token drawn."""

from __future__ import annotations

from collections import Counter

import numpy as np

M0, M1, W0, W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
LOW = np.uint64(0xFFFFFFFF)


def philox(seed: int, index: int, places: np.ndarray, level: int = 0, purpose: int = 0) -> list[np.ndarray]:
    """The output words of Philox4x32-10 for each place."""
    c = [np.full(len(places), word, np.uint64) for word in (index, 0, purpose, level)]
    c[1] = places.astype(np.uint64)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(M0), c[2] * np.uint64(M1)
        c = [
            (p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            p1 & LOW,
            (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            p0 & LOW,
        ]
        k0, k1 = (k0 + W0) & 0xFFFFFFFF, (k1 + W1) & 0xFFFFFFFF
    return c


def exponential(words: np.ndarray) -> np.ndarray:
    return -np.log((words.astype(np.float64) + 0.5) / 2.0**32)


def noise(seed: int, index: int, count: int) -> np.ndarray:
    """-ln E: of 64 tokens the group's words draw the least E and whose it is; the others add a draw of their own."""
    seed, tokens = seed % (1 << 64), np.arange(count)
    least, whose, *_ = philox(seed, index, tokens // 64, level=1)
    own = np.where(tokens % 64 == whose.astype(np.int64) % 64, 0.0, exponential(philox(seed, index, tokens)[0]))
    return -np.log(exponential(least) / 64 + own)


def processed(logits, params, prompt=(), output=(), banned=(), mask=None) -> np.ndarray:
    """Logits after bias, penalties, allowed ids, bans and mask. `output` holds the drafts before the row too."""
    x = logits.astype(np.float64).copy()
    for token, value in params.logit_bias.items():
        x[token] += value
    for token in {*prompt, *output}:
        x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
    for token, count in Counter(output).items():
        x[token] -= params.frequency_penalty * count + params.presence_penalty
    if params.allowed_token_ids is not None:
        kept = x[list(params.allowed_token_ids)]
        x[:] = -np.inf
        x[list(params.allowed_token_ids)] = kept
    x[list(banned)] = -np.inf
    if mask is not None:
        x[[i for i in range(len(x)) if not mask[i >> 5] >> (i & 31) & 1]] = -np.inf
    return x


def survivors(x: np.ndarray, params) -> np.ndarray:
    """Ids that min-p, top-k and top-p leave, in the order logit descending, id ascending; and p of each."""
    with np.errstate(over="ignore"):
        p = np.exp((x - x.max()) / params.temperature)
    order = np.lexsort((np.arange(len(x)), -x))
    order = order[np.isfinite(x[order])]
    order = order[p[order] >= params.min_p]
    if 0 < params.top_k < len(x):
        order = order[: params.top_k]
    if params.top_p < 1.0:
        mass = np.cumsum(p[order]) / p[order].sum()
        order = order[: int(np.searchsorted(mass, params.top_p)) + 1]
    return order


def choose(logits, params, seed, index, prompt=(), output=(), banned=(), mask=None) -> int:
    x = processed(logits, params, prompt, output, banned, mask)
    if params.temperature < 1e-5:
        return int(np.argmax(x))
    ids = survivors(x, params)
    with np.errstate(over="ignore"):
        score = (x[ids] - x.max()) / params.temperature + noise(seed, index, len(x))[ids]
    return int(ids[np.lexsort((ids, -score))[0]])


def log_softmax(x: np.ndarray) -> np.ndarray:
    d = x.astype(np.float64) - x.max()
    return d - np.log(np.exp(d).sum())
