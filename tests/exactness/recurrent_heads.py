"""Recurrent drafters that know what a tiny model says: random weights, and a last matrix fitted to a plain run."""

import numpy as np

from exactness import heads

INNER, LENGTH = 300, 3


def silu(x):
    return x / (1 + np.exp(-x))


def write_recurrent(folder, embedding, outputs, states, config):
    """Random weights up to the last matrix, which is fitted to what they make of the plain run."""
    rng = np.random.default_rng(2)
    width = embedding.shape[1]

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    tensors = {"input_proj.weight": 2 * matrix(INNER, 2 * width), "input_proj.bias": matrix(1, INNER)[0]}
    tensors |= {"lm_head.0.linear.weight": 2 * matrix(INNER, INNER), "lm_head.0.linear.bias": matrix(1, INNER)[0]}
    if config["rnn"]:
        tensors |= {"rnn_w.weight": 3 * matrix(width, width), "rnn_u.weight": matrix(width, width)}
        tensors["rnn_u.bias"] = matrix(1, width)[0]
    features, labels = [], []
    for (name, n), h in states.items():
        state = np.zeros(width, np.float32)
        for step in range(min(LENGTH, len(outputs[name]) - n)):
            token = embedding[outputs[name][n - 1 + step]]
            state = state + token
            if config["rnn"]:
                state = silu(
                    tensors["rnn_w.weight"] @ token + tensors["rnn_u.weight"] @ (state - token) + tensors["rnn_u.bias"]
                )
            x = tensors["input_proj.weight"] @ np.concatenate((h, state)) + tensors["input_proj.bias"]
            features.append(x + silu(tensors["lm_head.0.linear.weight"] @ x + tensors["lm_head.0.linear.bias"]))
            labels.append(outputs[name][n + step])
    tensors["lm_head.1.weight"] = heads.fitted(features, labels, len(embedding))
    return heads.write(folder, {"architectures": ["ReDrafterModel"], "num_draft_layers": 1, **config}, tensors)
