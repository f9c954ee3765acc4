"""EAGLE heads over every family: the states that feed them are found in each program, recurrent state takes their trees
back. The layers are random; what they make of a run's own tokens is fitted to the tokens that came."""

import numpy as np
import pytest
from drafters.test_eagle import Kept

from exactness import eagle_heads, heads
from exactness.families import FAMILIES, write_family
from exactness.harness import House, check, subjects
from octavo.drafters.eagle import Branching
from octavo.drafters.folder import HeadFolder

TOKENS, SIZE, HEADS, INNER = 16, 16, 4, 40


def random_head(width, vocab):
    """(config, tensors) of an EAGLE-3 head whose own head says nothing yet."""
    rng = np.random.default_rng(1)

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    ones = np.ones(width, np.float32)
    tensors = {f"midlayer.self_attn.{name}_proj.weight": matrix(HEADS * SIZE, 2 * width) for name in "qkv"}
    tensors |= {f"midlayer.mlp.{name}_proj.weight": matrix(INNER, width) for name in ("gate", "up")}
    tensors |= {"midlayer.mlp.down_proj.weight": matrix(width, INNER)}
    tensors |= {"midlayer.self_attn.o_proj.weight": matrix(width, HEADS * SIZE)}
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    tensors |= {f"midlayer.{name}.weight": ones for name in norms} | {"norm.weight": ones}
    tensors |= {"fc.weight": matrix(width, 3 * width), "lm_head.weight": np.zeros((vocab, width), np.float32)}
    sizes = {"hidden_size": width, "vocab_size": vocab, "head_dim": SIZE, "intermediate_size": INNER}
    counts = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    return eagle_heads.stated(architectures=["LlamaForCausalLMEagle3"], **sizes, **counts), tensors


def opened(folder, model, *, quiet=False):
    target = heads.open_target(model)
    drafter = Kept(HeadFolder(folder, target), target, Branching(3, 3, 8), adaptive=False)
    drafter.quiet, drafter.entries, drafter.features, drafter.grown = quiet, {}, {}, []
    return drafter


def fitted(drafter, plain, requests, vocab):
    """[vocab, D]: of what entry i makes of tokens up to i + 1, token i + 2."""
    pairs = []
    for one in requests:
        tokens, first = [*one.prompt_ids, *plain.outputs[one.id]], len(one.prompt_ids) - 2
        pairs += [(drafter.entries[one.id, i], tokens[i + 2]) for i in range(max(first, 0), len(tokens) - 2)]
    states = np.stack([x / np.sqrt(np.mean(x * x) + 1e-5) for x, _ in pairs])
    return heads.fitted(states, [token for _, token in pairs], vocab)


@pytest.mark.parametrize("name", FAMILIES)
def test_eagle_changes_no_bit(name, tmp_path):
    model, config = write_family(name, tmp_path), FAMILIES[name]
    vocab, width = config["vocab_size"], config.get("hidden_size", config.get("n_embd"))
    stated, tensors = random_head(width, vocab)
    folder = eagle_heads.write(tmp_path / "head", stated, tensors)
    quiet, requests = opened(folder, model, quiet=True), subjects(vocab, tokens=TOKENS)
    house = House(model, drafter=quiet, enable_prefix_caching=False, threads=1, num_blocks=200)
    plain = house.run(requests)
    house.close()
    tensors["lm_head.weight"] = fitted(quiet, plain, requests, vocab)
    drafter = opened(eagle_heads.write(folder, stated, tensors), model)
    house = House(model, drafter=drafter, poison=True, threads=1, num_blocks=200, max_num_batched_tokens=60)
    run = house.run(subjects(vocab, tokens=TOKENS))
    house.close()
    check(run, plain)
    assert run.stats["drafts_accepted"] > 5 and run.stats["drafts_rejected"] > 20


@pytest.mark.parametrize("name", FAMILIES)
def test_the_first_generation_finds_the_norm_and_the_head(name, tmp_path):
    model, config = write_family(name, tmp_path), FAMILIES[name]
    vocab, width = config["vocab_size"], config.get("hidden_size", config.get("n_embd"))
    stated, tensors = random_head(width, vocab)
    kept = {name.replace("midlayer", "layers.0"): array for name, array in tensors.items() if "norm" not in name}
    del kept["lm_head.weight"]
    for eats in (f"layers.0.self_attn.{name}_proj.weight" for name in "qkv"):
        kept[eats] = kept[eats][:, :width]
    kept["fc.weight"] = kept["fc.weight"][:, : 2 * width]
    kept["layers.0.post_attention_layernorm.weight"] = np.ones(width, np.float32)
    folder = eagle_heads.write(tmp_path / "head", stated, kept)
    drafter = opened(folder, model)
    house = House(model, drafter=drafter, threads=1, num_blocks=200)
    run = house.run(subjects(vocab, tokens=4))
    house.close()
    assert run.stats["drafts_rejected"] > 20 and all(np.isfinite(x).all() for x in drafter.entries.values())
