"""bench/shapes.py: a scaled-down shape of each family loads and answers, in each type and format."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from engines import ask
from gguf_model import vocabulary

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shapes():
    spec = importlib.util.spec_from_file_location("shapes", ROOT / "bench" / "shapes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["shapes"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def metadata(model):
    """A small tokenizer as a GGUF file states it."""
    return {f"tokenizer.ggml.{name}": value for name, value in vocabulary(Path(model), 272).items()}


def small(shape, **over):
    sizes = {"layers": 2, "hidden": 128, "inner": 256, "heads": 4, "kv_heads": 2, "head": 64, "vocabulary": 320}
    return replace(shape, **sizes | over)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16"])
@pytest.mark.parametrize("name", ["qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b"])
def test_a_small_shape_loads_and_answers(shapes, metadata, tmp_path, open_llm, name, kind):
    shape = small(shapes.SHAPES[name])
    path = tmp_path / "small.gguf"
    shapes.write_gguf(shape, kind, path, metadata)
    held = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert ("output.weight" in held) is (name == "llama-3.1-8b")
    assert ("rope_freqs.weight" in held) is name.startswith("llama")
    assert held["blk.1.ffn_down.weight"].tensor_type.name == kind
    values = gguf.quants.dequantize(held["blk.0.ffn_up.weight"].data, held["blk.0.ffn_up.weight"].tensor_type)
    assert 0.6 < float(np.asarray(values, np.float64).std()) * shape.hidden**0.5 < 1.6
    answer = ask(open_llm(path, max_model_len=256), "abc", logprobs=3)
    assert len(answer.token_ids) > 0
    assert all(math.isfinite(entry.logprob) for place in answer.logprobs for entry in place.values())


@pytest.mark.parametrize("name", ["qwen3-0.6b", "llama-3.1-8b"])
def test_a_folder_of_safetensors(shapes, metadata, tmp_path, open_llm, name):
    shapes.write_safetensors(small(shapes.SHAPES[name]), tmp_path / "folder", metadata)
    answer = ask(open_llm(tmp_path / "folder", max_model_len=256), "abc", logprobs=1)
    assert all(math.isfinite(entry.logprob) for place in answer.logprobs for entry in place.values())


def test_a_vocabulary_is_cut_or_filled_up(shapes, metadata):
    cut, filled = shapes.words(metadata, 260), shapes.words(metadata, 300)
    assert len(cut["tokenizer.ggml.tokens"]) == 260 and len(filled["tokenizer.ggml.tokens"]) == 300
    assert filled["tokenizer.ggml.token_type"][272:] == [5] * 28
    known = set(cut["tokenizer.ggml.tokens"])
    kept = cut["tokenizer.ggml.merges"]
    assert kept != metadata["tokenizer.ggml.merges"] and len(kept) > 0
    assert all("".join(line.split(" ", 1)) in known for line in kept)


def test_rope_factors_are_those_of_the_configuration(shapes):
    """What converters write for Llama 3.1: high frequencies kept, low ones divided by 8, a band between."""
    factors = shapes.rope_factors(shapes.SHAPES["llama-3.1-8b"])
    assert len(factors) == 64 and factors[0] == 1 and factors[-1] == pytest.approx(8)
    assert list(factors) == sorted(factors) and 1 < factors[32] < 8
