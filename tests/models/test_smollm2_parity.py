"""The real model: greedy ids of the reference against transformers, on weights unpacked by the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
import transformers
from stepping import Run, Stepper

from octavo.backends import executor_for
from octavo.errors import MissingFileError
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.fetch import resolve
from octavo.weights.match import match
from octavo.weights.prepare import prepare

# Cut to equal lengths, so that the twin needs no padding.
PROMPTS = [
    (
        12,
        [
            "The capital of France is Paris, and the river that runs through the city is called the",
            "Water boils at one hundred degrees when the pressure is that of the sea level, but on",
            "def add(a, b):\n    return a + b\n\ndef multiply(a, b):\n    return",
            "Once upon a time there was a king who had three daughters, and the youngest of them",
            "In the year 1492 Christopher Columbus sailed across the ocean with three ships and found",
            "To make bread you need flour, water, salt and yeast. First you mix the flour with",
            "The quick brown fox jumps over the lazy dog while the sun sets behind the old hills",
            "Photosynthesis is the process by which green plants turn light into food with the help of",
            "A list of the planets: Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and",
            "She opened the door slowly and saw that the room was full of old books and dusty",
        ],
    ),
    (
        9,
        [
            "The largest animal that ever lived on the planet is the blue whale, which can",
            "Question: What is two plus two? Answer: Four. Question: What is three plus",
            "My favourite season is autumn because the leaves turn red and gold and the",
            "The train left the station at noon and arrived in the next town after two",
            "import numpy as np\n\nx = np.zeros((3, 4))\nprint(x",
            "Music is a form of art that uses sound and silence in time to express",
            "If it rains tomorrow we will stay at home and read a book about the",
            "The human heart has four chambers and pumps blood through the whole body with",
            "Dear Sir or Madam, I am writing to you about the letter that I received",
            "Gold is a chemical element with the symbol Au and the atomic number of",
        ],
    ),
]
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def path():
    try:
        return resolve("smollm2:135m")
    except MissingFileError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def stepper(path):
    checkpoint = open_checkpoint(path)
    shapes = {name: header.shape for name, header in checkpoint.headers.items()}
    program = program_for(ModelConfig.from_gguf(checkpoint.config, shapes, checkpoint.rope_factors()))
    tensors = {
        name: prepare(checkpoint.read(source), program.weights[name].prep)
        for name, source in match(program.weights, checkpoint).items()
    }
    return Stepper(executor_for("reference"), program, tensors, slots=20, length=96)


@pytest.fixture(scope="module")
def twin(path):
    reader = gguf.GGUFReader(path)
    values = {t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}
    field = {name: entry.contents() for name, entry in reader.fields.items()}
    heads, kv_heads = field["llama.attention.head_count"], field["llama.attention.head_count_kv"]
    config = transformers.LlamaConfig(
        vocab_size=len(values["token_embd.weight"]),
        hidden_size=field["llama.embedding_length"],
        intermediate_size=field["llama.feed_forward_length"],
        num_hidden_layers=field["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=field["llama.context_length"],
        rms_norm_eps=field["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": field["llama.rope.freq_base"]},
        tie_word_embeddings=True,
    )

    def half_split(weight, count):
        return weight.view(count, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)

    state = {
        "model.embed_tokens.weight": values["token_embd.weight"],
        "lm_head.weight": values["token_embd.weight"],
        "model.norm.weight": values["output_norm.weight"],
    }
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for layer in range(config.num_hidden_layers):
        for theirs, ours in names.items():
            weight = values[f"blk.{layer}.{ours}.weight"]
            count = {"attn_q": heads, "attn_k": kv_heads}.get(ours)
            state[f"model.layers.{layer}.{theirs}.weight"] = half_split(weight, count) if count else weight
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.float().eval(), field["tokenizer.ggml.tokens"]


def ids_of(text, vocabulary, length):
    """Any ids that spell the text will do: the longest piece first."""
    ids, rest = [], text.replace(" ", "Ġ").replace("\n", "Ċ")
    while rest:
        end = next(end for end in range(len(rest), 0, -1) if rest[:end] in vocabulary)
        ids.append(vocabulary[rest[:end]])
        rest = rest[end:]
    return ids[:length]


def test_20_prompts_of_64_greedy_tokens(stepper, twin):
    model, tokens = twin
    vocabulary = {token: number for number, token in enumerate(tokens)}
    texts = set()
    for group, (length, prompts) in enumerate(PROMPTS):
        ids = [ids_of(prompt, vocabulary, length) for prompt in prompts]
        slots = range(group * len(ids), (group + 1) * len(ids))
        runs = [Run(slot, 0, tuple(prompt), len(prompt) - 1) for slot, prompt in zip(slots, ids, strict=True)]
        got = [[] for _ in ids]
        for at in range(length, length + NEW_TOKENS):
            for out, row in zip(got, stepper.step(*runs), strict=True):
                out.append(int(row.argmax()))
            runs = [Run(slot, at, (out[-1],)) for slot, out in zip(slots, got, strict=True)]
        # Each id is the twin's own choice after the same ids: so its greedy decoding gives these, by induction.
        with torch.no_grad():
            logits = model(torch.tensor([prompt + out for prompt, out in zip(ids, got, strict=True)])).logits
        assert got == logits[:, length - 1 : -1].argmax(-1).tolist()
        texts.update(tuple(out) for out in got)
    assert len(texts) == 20


def test_weights_equal_the_gguf_package(stepper, twin):
    """Bit for bit, embedding and one matrix of each kind of row order."""
    state, held = twin[0].state_dict(), stepper.session.weights
    for ours, theirs in {
        "embed": "embed_tokens",
        "3.wq": "layers.3.self_attn.q_proj",
        "7.wdown": "layers.7.mlp.down_proj",
    }.items():
        assert np.array_equal(held[ours].numpy(), state[f"model.{theirs}.weight"].numpy())
