"""Program weights against a file's tensors: missing, left over, of the wrong shape, and extras taken on purpose."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.errors import BadFileError, ConfigError
from octavo.program.ir import Weight
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.match import match, set_aside

V, D = 8, 32


def weights(*, tied: bool) -> dict[str, Weight]:
    found = {
        "embed": Weight("embed", (V, D), {"hf": "model.embed_tokens.weight", "gguf": "token_embd.weight"}),
        "norm": Weight("norm", (D,), {"hf": "model.norm.weight", "gguf": "output_norm.weight"}),
    }
    if not tied:
        found["head"] = Weight("head", (V, D), {"hf": "lm_head.weight", "gguf": "output.weight"})
    return found


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.fixture
def hf(tmp_path):
    def write(**extra):
        arrays = {"model.embed_tokens.weight": ones(V, D), "model.norm.weight": ones(D), **extra}
        (tmp_path / "config.json").write_text("{}")
        kept = {name: array for name, array in arrays.items() if array is not None}
        save_file(kept, tmp_path / "model.safetensors")
        return open_checkpoint(tmp_path)

    return write


@pytest.fixture
def gguf(write_gguf):
    def write(**extra):
        arrays = {"token_embd.weight": ones(V, D), "output_norm.weight": ones(D), **extra}
        return open_checkpoint(write_gguf({name: ("F32", array) for name, array in arrays.items()}))

    return write


def test_each_weight_finds_its_tensor(hf, gguf):
    assert match(weights(tied=True), hf()) == {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}
    assert match(weights(tied=False), gguf(**{"output.weight": ones(V, D)})) == {
        "embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight",
    }  # fmt: skip


def test_a_tied_head_may_be_present_or_absent(hf):
    """T31: and where the program wants a head of its own, its absence is an error."""
    for checkpoint in (hf(), hf(**{"lm_head.weight": ones(V, D)})):
        assert match(weights(tied=True), checkpoint).keys() == {"embed", "norm"}
    with pytest.raises(BadFileError, match=r"lacks lm_head\.weight") as caught:
        match(weights(tied=False), hf())
    assert (caught.value.code, caught.value.exit_code) == ("missing_tensors", 65)


def test_tensors_of_draft_layers_may_be_there(hf):
    """Named by their beginnings, and told apart from strangers of a like name."""
    checkpoint = hf(**{"model.layers.3.enorm.weight": ones(D), "model.layers.30.enorm.weight": ones(D)})
    with pytest.raises(BadFileError, match=r"model\.layers\.3\.enorm\.weight"):
        match(weights(tied=True), checkpoint)
    with pytest.raises(BadFileError, match=r"holds model\.layers\.30\.enorm\.weight"):
        match(weights(tied=True), checkpoint, ["model.layers.3."])
    spare = ["model.layers.3.", "model.layers.30."]
    assert match(weights(tied=True), checkpoint, spare).keys() == {"embed", "norm"}
    assert set_aside(checkpoint, spare) == ["model.layers.3.enorm.weight", "model.layers.30.enorm.weight"]


def test_rope_factors_and_no_output_in_gguf(gguf):
    """T32: rope_freqs.weight is taken on purpose and its values are at hand; output.weight is absent when tied."""
    factors = np.array([1.0, 2.5, 8.0], np.float32)
    checkpoint = gguf(**{"rope_freqs.weight": factors})
    assert match(weights(tied=True), checkpoint).keys() == {"embed", "norm"}
    assert checkpoint.rope_factors() == (1.0, 2.5, 8.0)
    assert gguf().rope_factors() == ()


def test_rotary_buffers_are_skipped(hf):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    assert name not in match(weights(tied=True), hf(**{name: ones(4)})).values()


def test_leftovers_are_named(hf, gguf):
    with pytest.raises(BadFileError, match=r"model\.layers\.0\.mystery\.weight") as caught:
        match(weights(tied=True), hf(**{"model.layers.0.mystery.weight": ones(2, 2)}))
    assert (caught.value.code, caught.value.exit_code) == ("unknown_tensors", 65)
    with pytest.raises(BadFileError, match=r"q\.0, q\.1, q\.2, q\.3, q\.4 and 2 more") as caught:
        match(weights(tied=True), gguf(**{f"q.{i}": ones(2) for i in range(7)}))
    assert "\n" not in caught.value.line()
    with pytest.raises(BadFileError, match=r"q\.0, q\.1, q\.2, q\.3, q\.4, which"):
        match(weights(tied=True), gguf(**{f"q.{i}": ones(2) for i in range(5)}))
    with pytest.raises(BadFileError, match=r"rope_freqs\.weight"):
        match(weights(tied=True), hf(**{"rope_freqs.weight": ones(4)}))


def test_missing_are_named(hf):
    with pytest.raises(BadFileError, match=r"model\.norm\.weight"):
        match(weights(tied=True), hf(**{"model.norm.weight": None}))


@pytest.mark.parametrize(
    ("name", "shape", "field"),
    [
        ("model.embed_tokens.weight", (V + 1, D), "vocab_size"),
        ("model.embed_tokens.weight", (V, D + 1), "hidden_size"),
        ("model.embed_tokens.weight", (V * D,), "model.embed_tokens.weight"),
        ("model.norm.weight", (D + 1,), "hidden_size"),
    ],
)
def test_a_wrong_shape_names_the_field(hf, name, shape, field):
    with pytest.raises(ConfigError) as caught:
        match(weights(tied=True), hf(**{name: ones(*shape)}))
    assert (caught.value.code, caught.value.param, caught.value.exit_code) == ("bad_config", field, 78)
    assert str(list(shape)) in str(caught.value)


def test_the_vocabulary_of_a_gguf_file_is_that_of_its_embedding(gguf):
    with pytest.raises(ConfigError, match="vocab_size"):
        match(weights(tied=True), gguf(**{"token_embd.weight": ones(V + 8, D)}))


@pytest.mark.parametrize(
    ("hf_name", "gguf_name", "field"),
    [
        ("model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight", "intermediate_size"),
        ("model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight", "num_attention_heads"),
        ("model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight", "num_key_value_heads"),
    ],
)
def test_rows_of_projections_name_their_field(hf, gguf, hf_name, gguf_name, field):
    wanted = {**weights(tied=True), "w": Weight("w", (16, D), {"hf": hf_name, "gguf": gguf_name})}
    for checkpoint in (hf(**{hf_name: ones(24, D)}), gguf(**{gguf_name: ones(24, D)})):
        with pytest.raises(ConfigError) as caught:
            match(wanted, checkpoint)
        assert caught.value.param == field


def test_a_weight_without_a_name_in_the_format(hf):
    with pytest.raises(ConfigError, match="drafter"):
        match({"drafter": Weight("drafter", (1,), {"gguf": "x"})}, hf())
