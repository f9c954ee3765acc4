"""A quantized checkpoint runs as its dequantized twin does: the reference to the bit, the native kernels closely."""

from __future__ import annotations

import math

import pytest
from quantized import METHODS, write_quantized

from octavo import LLM, SamplingParams

PROMPT = list(range(3, 40))


NUMERICS = {"reference": {"dtype": "float32"}, "native": {"activations": "int15"}}


def scores(model, executor):
    """Greedy ids and their log-probabilities; natively by the integers that are closest to float32."""
    options = {"max_model_len": 64, "max_num_seqs": 1, "threads": 1, "num_blocks": 8, "executor": executor}
    with LLM(str(model), **options, **NUMERICS[executor]) as llm:
        (output,) = llm.generate([PROMPT], SamplingParams(max_tokens=8, temperature=0, logprobs=1, ignore_eos=True))
        choice = output.outputs[0]
        return choice.token_ids, [
            row[token].logprob for row, token in zip(choice.logprobs, choice.token_ids, strict=True)
        ]


@pytest.mark.parametrize("method", METHODS)
def test_as_its_dequantized_twin(tmp_path, method):
    write_quantized(tmp_path / "quantized", tmp_path / "plain", method)
    ids, wanted = scores(tmp_path / "plain", "reference")
    assert scores(tmp_path / "quantized", "reference") == (ids, wanted)
    native_ids, got = scores(tmp_path / "quantized", "native")
    assert native_ids == ids and all(math.isclose(a, b, abs_tol=0.05) for a, b in zip(got, wanted, strict=True))
