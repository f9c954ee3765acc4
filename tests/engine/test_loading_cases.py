"""Reported faults in loading: shards, GGUF, scaled rotary embeddings, windows. Letters as in tests/CASES.md."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from engines import ask, ids
from gguf_model import write_gguf_model
from safetensors.numpy import load_file, save_file

from octavo import SamplingParams
from octavo.errors import BadFileError

GREEDY = SamplingParams(temperature=0, max_tokens=12)


# ---- loading
def test_t31_the_index_decides(model, tiny, tmp_path, open_llm):
    """Both shards hold a tensor, the index points to the first; a file that it does not list is not read."""
    tensors = load_file(f"{model}/model.safetensors")
    names = sorted(tensors)
    folder = Path(shutil.copytree(model, tmp_path / "sharded"))
    (folder / "model.safetensors").unlink()
    stray = {name: np.zeros_like(tensors[name]) for name in names}
    save_file({name: tensors[name] for name in names[:8]}, folder / "one.safetensors")
    save_file({name: tensors[name] for name in names[8:]} | {names[0]: stray[names[0]]}, folder / "two.safetensors")
    save_file(stray, folder / "zzz.safetensors")
    where = {name: "one.safetensors" if place < 8 else "two.safetensors" for place, name in enumerate(names)}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert ids(open_llm(folder).generate("abc", GREEDY)) == ids(tiny.generate("abc", GREEDY))
    index.write_text(json.dumps({"weight_map": {name: where[name] for name in names[1:]}}))
    with pytest.raises(BadFileError, match=names[0]) as caught:
        open_llm(folder)
    assert caught.value.code == "missing_tensors"


def test_t31_a_tied_head_may_be_there_or_not(model, tmp_path, open_llm):
    folder = Path(shutil.copytree(model, tmp_path / "tied"))
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    there = ids(open_llm(folder).generate("abc", GREEDY))
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    assert ids(open_llm(folder).generate("abc", GREEDY)) == there


def test_t32_gguf_with_rope_factors_and_no_output(model, tmp_path, open_llm):
    """The same model as GGUF: the head is the embedding, and factors on all frequencies are linear scaling."""
    folder = Path(shutil.copytree(model, tmp_path / "plain"))
    scaling = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "tie_word_embeddings": True}
    config = json.loads((folder / "config.json").read_text()) | scaling
    (folder / "config.json").write_text(json.dumps(config))
    factors = {"rope_freqs.weight": np.full(8, 4, np.float32)}
    path = write_gguf_model(model, tmp_path / "toy.gguf", extra=factors, tied=True)
    prompts = [{"prompt_token_ids": [256, *range(40, 90)]}]
    scaled = ids(open_llm(folder).generate(prompts, GREEDY))
    assert ids(open_llm(path).generate(prompts, GREEDY)) == scaled
    plain = write_gguf_model(model, tmp_path / "plain.gguf", tied=True)
    assert ids(open_llm(plain).generate(prompts, GREEDY)) != scaled


def test_a_vocabulary_of_other_size_than_the_embedding(model, tiny, tmp_path, open_llm):
    """The tokenizer knows fewer tokens than the embedding has rows: the rest cannot be spelled, but is computed."""
    path = write_gguf_model(model, tmp_path / "toy.gguf")
    llm = open_llm(path)
    assert llm.info.vocab_size == tiny.info.vocab_size > tiny.tokenizer.size
    assert ids(llm.generate("abc", GREEDY)) == ids(tiny.generate("abc", GREEDY))
    assert len(ask(llm, {"prompt_token_ids": [271]}).token_ids) == 12


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_type": "yarn", "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
          "original_max_position_embeddings": 2048}, 32768),
        ({"rope_type": "dynamic", "factor": 2.0}, 32768),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}, 32768),
    ],
)  # fmt: skip
def test_t33_scaled_ropes(model, tmp_path, open_llm, scaling, longest):
    """The length is scaled once; a shorter served length gives numbers, not NaN. Values: tests/models/test_rope.py."""
    folder = Path(shutil.copytree(model, tmp_path / "scaled"))
    fields = {"max_position_embeddings": 32768, "rope_scaling": scaling}
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | fields))
    assert open_llm(folder).info.max_model_len == longest
    answer = ask(open_llm(folder, max_model_len=64), "abc", logprobs=1)
    assert all(math.isfinite(entry.logprob) for place in answer.logprobs for entry in place.values())


# ---- windows
def windowed(path, folder, kinds):
    """The tiny model as one whose layers look at 8 tokens or at all."""
    folder = Path(shutil.copytree(path, folder))
    window = {"sliding_window": 8, "use_sliding_window": True, "layer_types": kinds, "num_hidden_layers": len(kinds)}
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | window))
    if len(kinds) == 1:
        tensors = load_file(folder / "model.safetensors")
        kept = {name: array for name, array in tensors.items() if ".layers.1." not in name}
        save_file(kept, folder / "model.safetensors")
    return folder


def reading(llm, prompt):
    """The first token's alternatives after a prompt of ids, to the bit, and the next tokens."""
    answer = ask(llm, {"prompt_token_ids": prompt}, max_tokens=5, logprobs=20)
    return {token: entry.logprob for token, entry in answer.logprobs[0].items()}, answer.token_ids


@pytest.mark.parametrize("length", [6, 7, 8, 9, 16, 40])
def test_t34_a_window_ends_where_it_says(model, tmp_path, open_llm, length):
    """One layer with a window of 8: what stands before the last 8 tokens changes no bit, the eighth from last does."""
    folder = windowed(model, tmp_path / "window", ["sliding_attention"])
    llm, chunked = open_llm(folder), open_llm(folder, max_num_batched_tokens=3, enable_prefix_caching=False)
    prompt = [(7 * i) % 250 for i in range(length)]
    here = reading(llm, prompt)
    assert reading(chunked, prompt) == here
    if length > 8:
        outside = [*((token + 1) % 250 for token in prompt[:-8]), *prompt[-8:]]
        assert reading(llm, outside)[0] == here[0]
    edge = max(length - 8, 0)
    inside = [*prompt[:edge], (prompt[edge] + 1) % 250, *prompt[edge + 1 :]]
    assert reading(llm, inside)[0] != here[0]


def test_t34_a_layer_without_a_window_sees_everything(model, tmp_path, open_llm):
    folder = windowed(model, tmp_path / "mixed", ["sliding_attention", "full_attention"])
    llm = open_llm(folder)
    prompt = [(7 * i) % 250 for i in range(40)]
    assert reading(llm, [prompt[0] + 1, *prompt[1:]])[0] != reading(llm, prompt)[0]


def test_a_windowed_prefix_is_found_again(model, tmp_path, open_llm):
    """The next turn diverges in the last block: the blocks before it still serve."""
    llm = open_llm(windowed(model, tmp_path / "mixed", ["sliding_attention", "full_attention"]))
    prompt = [(7 * i) % 250 for i in range(64)]
    other = [*prompt[:-3], 1, 2, 3]
    llm.generate({"prompt_token_ids": prompt}, GREEDY, use_tqdm=False)
    warm = llm.generate({"prompt_token_ids": other}, GREEDY, use_tqdm=False)[0]
    assert warm.num_cached_tokens >= 32
    cold = open_llm(tmp_path / "mixed", enable_prefix_caching=False)
    assert ids([warm]) == ids(cold.generate({"prompt_token_ids": other}, GREEDY, use_tqdm=False))
