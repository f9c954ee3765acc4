"""`octavo train head` on a tiny model: what it learns, what it writes, how it goes on."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tiny_model import CONFIG

from octavo.train import KINDS
from octavo.train.features import Features, _read_runs
from octavo.train.head import Batch
from octavo.train.job import HEADS
from octavo.train.questions import questions
from octavo.train.target import Target
from octavo.train.vocabulary import DraftVocabulary

WIDTH, SIZE = CONFIG["hidden_size"], CONFIG["vocab_size"]
KEPT = 64
SMALL = ("--tokens", 1200, "--window", 128, "--draft-vocab", 64, "--threads", 1, "--float32")
NORMS = "input_layernorm", "post_attention_layernorm"


def layer(eaten):
    """Matrices of a decoder layer whose projections eat so many columns."""
    heads, kv, inner = (CONFIG[name] for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"))
    size = CONFIG["head_dim"]
    attention = {"q_proj": (heads * size, eaten), "k_proj": (kv * size, eaten), "v_proj": (kv * size, eaten)}
    mlp = {"gate_proj": (inner, WIDTH), "up_proj": (inner, WIDTH), "down_proj": (WIDTH, inner)}
    named = {f"self_attn.{name}": shape for name, shape in (attention | {"o_proj": (WIDTH, heads * size)}).items()}
    return named | {f"mlp.{name}": shape for name, shape in mlp.items()}


LAYOUTS = {
    "medusa": {
        **{f"{k}.0.linear.weight": (WIDTH, WIDTH) for k in range(4)},
        **{f"{k}.0.linear.bias": (WIDTH,) for k in range(4)},
        **{f"{k}.1.weight": (KEPT, WIDTH) for k in range(4)},
    },
    "recurrent": {
        **{"rnn_w.weight": (WIDTH, WIDTH), "rnn_u.weight": (WIDTH, WIDTH), "rnn_u.bias": (WIDTH,)},
        **{f"lm_head.{n}.linear.weight": (2 * WIDTH, 2 * WIDTH) for n in range(2)},
        **{f"lm_head.{n}.linear.bias": (2 * WIDTH,) for n in range(2)},
        "lm_head.2.weight": (KEPT, 2 * WIDTH),
    },
    "eagle3": {
        "fc.weight": (WIDTH, 3 * WIDTH),
        **{f"midlayer.{name}.weight": (WIDTH,) for name in ("hidden_norm", *NORMS)},
        **{f"midlayer.{name}.weight": shape for name, shape in layer(2 * WIDTH).items()},
        "norm.weight": (WIDTH,),
        "lm_head.weight": (KEPT, WIDTH),
    },
    "mtp": {
        **{f"model.layers.2.{name}.weight": (WIDTH,) for name in ("enorm", "hnorm", "shared_head.norm", *NORMS)},
        **{f"model.layers.2.{name}.weight": shape for name, shape in layer(WIDTH).items()},
        "model.layers.2.eh_proj.weight": (WIDTH, 2 * WIDTH),
        "model.layers.2.shared_head.head.weight": (KEPT, WIDTH),
    },
}
STATED = {
    "medusa": {"architectures": ["MedusaModel"], "medusa_num_heads": 4, "medusa_num_layers": 1},
    "recurrent": {"architectures": ["ReDrafterModel"], "rnn": True, "num_draft_layers": 2, "beam_length": 5},
    "eagle3": {
        **{"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "head_dim": CONFIG["head_dim"]},
        **{"eagle_aux_hidden_state_layer_ids": [1, 1, 0], "rope_theta": CONFIG["rope_theta"]},
    },
    "mtp": {"architectures": ["MTPModel"], "num_nextn_predict_layers": 1, "num_hidden_layers": 2},
}


def mean(history):
    return sum(loss for _, loss in history) / len(history)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_and_is_written_in_its_layout(train, tmp_path, kind):
    found = train(kind, tmp_path / "out", "--lr", 0.01)
    assert found.code == 0, found.err
    report = found.report
    assert report["done"] and report["step"] == report["steps"] == len(report["history"])
    assert mean(report["history"][-5:]) < 0.8 * mean(report["history"][:5])
    depth = KINDS[kind].depth
    served = report["verified"]
    assert [one["temperature"] for one in served] == [0.0, 1.0]
    for one in served:
        assert one["steps"] > 0 and one["length"] == pytest.approx(1 + sum(one["accepted_at"]), abs=1e-6)
    shares = report["acceptance"]["overlap"] + report["acceptance"]["agreement"]
    assert len(shares) == 2 * depth and all(0 <= share <= 1 for share in shares)
    assert 1 < report["acceptance"]["sampled_length"] <= 1 + depth
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: array.shape for name, array in arrays.items()} == LAYOUTS[kind] | {"d2t": (KEPT,), "t2d": (SIZE,)}
    proposed = arrays["d2t"] + torch.arange(KEPT)
    assert arrays["t2d"].sum() == KEPT and arrays["t2d"][proposed].all()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["draft_vocab_size"] == KEPT and config["vocab_size"] == SIZE
    assert {name: config[name] for name in STATED[kind]} == STATED[kind]
    if kind == "medusa":
        accuracies = config["medusa_accuracies"]
        assert len(accuracies) == depth and all(0 <= share <= 1 for row in accuracies for share in row)
    assert "<svg" in (tmp_path / "out" / "loss.svg").read_text()


def test_a_head_is_written_in_fewer_bits_and_serves_as_well(train, tmp_path):
    found = train("recurrent", tmp_path / "out", "--lr", 0.01)
    assert found.code == 0, found.err
    wide = load_file(tmp_path / "out" / "model.safetensors")
    assert train("recurrent", tmp_path / "out", "--lr", 0.01, "--resume", "--bits", 8).code == 0
    narrow = load_file(tmp_path / "out" / "model.safetensors")
    assert {name for name in narrow if name not in wide} == {
        f"lm_head.{part}.{end}"
        for part in ("0.linear", "1.linear", "2")
        for end in ("weight_packed", "weight_scale", "weight_shape")
    }
    assert narrow.keys() & wide.keys() == {name for name in wide if "lm_head" not in name or name.endswith("bias")}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] == 8
    again = json.loads((tmp_path / "out" / "training.json").read_text())
    assert again["bits"] == 8 and again["acceptance"] == found.report["acceptance"]
    for one, other in zip(again["verified"], found.report["verified"], strict=True):
        assert one["steps"] > 0 and one["length"] == pytest.approx(other["length"], rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_broken_off_ends_with_the_same_bits(train, tmp_path, monkeypatch, kind):
    assert train(kind, tmp_path / "whole").code == 0
    kept = "octavo.train.loop.KEEP_EVERY"
    monkeypatch.setattr(kept, 0.0)
    steps = 0

    class Stopped(Exception):
        pass

    def stop(self):
        nonlocal steps
        steps += 1
        if steps == 7:
            raise Stopped
        return rate(self)

    from octavo.train.loop import Course

    rate = Course._rate
    monkeypatch.setattr(Course, "_rate", stop)
    monkeypatch.setenv("OCTAVO_TRACEBACK", "1")
    with pytest.raises(Stopped):
        train(kind, tmp_path / "parts")
    monkeypatch.setattr(Course, "_rate", rate)
    found = train(kind, tmp_path / "parts", "--resume")
    assert found.code == 0 and found.report["done"], found.err
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all((array == other[name]).all() for name, array in one.items())
    losses = [json.loads((tmp_path / name / "training.json").read_text())["history"] for name in ("whole", "parts")]
    assert losses[0] == losses[1]


def test_time_that_is_over_stops_between_two_steps(train, tmp_path):
    first = train("medusa", tmp_path / "out", "--minutes", 1e-9)
    assert first.code == 0 and not first.report["done"] and "--resume" in first.out
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert train("medusa", tmp_path / "out", "--resume").report["done"]


@pytest.mark.parametrize("loss", ["hard", "tv", "e2e"])
def test_every_loss_trains(train, tmp_path, loss):
    report = train("medusa", tmp_path / "out", "--loss", loss, "--lr", 0.02, "--epochs", 8).report
    half = len(report["history"]) // 2
    assert mean(report["history"][-5:]) < mean(report["history"][half : half + 5])


def test_the_first_half_of_a_loss_of_overlaps_is_cross_entropy(train, tmp_path):
    one = train("medusa", tmp_path / "soft").report["history"]
    other = train("medusa", tmp_path / "tv", "--loss", "tv", "--cold-start", 0.5).report["history"]
    half = len(one) // 2
    assert one[:half] == other[:half]
    assert max(loss for _, loss in other[half:]) < 4 * (1 + 1e-6) < min(loss for _, loss in one[:5])


def test_a_medusa_head_begins_as_the_head_of_the_model(home):
    target = Target(home / "model")
    vocabulary = DraftVocabulary.frequent((), SIZE, KEPT)
    head = HEADS["medusa"](target, vocabulary, 2, 0)
    hidden = torch.randn(1, 9, WIDTH)
    nothing = torch.zeros(1, 9)
    rows = torch.arange(9)[None] < 7
    batch = Batch(nothing.long(), hidden, hidden[..., :0], nothing, nothing.long(), rows | True, rows, 2)
    wanted = target.logits(hidden[0, :7], vocabulary.kept)
    assert all(torch.allclose(z, wanted, atol=1e-5) for z in head.logits(batch))


# ---- hidden states
def test_hidden_states_give_the_logits_of_the_model(train, home, tmp_path):
    """Of both executors: what the head of the model makes of them sums to the mass that is kept beside them."""
    assert train("medusa", tmp_path / "native").code == 0
    assert train("medusa", tmp_path / "reference", "--executor", "reference").code == 0
    target = Target(home / "model")
    found = []
    for name in ("native", "reference"):
        folder = tmp_path / name / "features"
        features = Features(folder, _read_runs(folder / "texts.jsonl"))
        one = features[len(features) - 1]
        logits = target.logits(one.hidden, torch.arange(SIZE))
        assert torch.allclose(torch.logsumexp(logits, 1), one.mass, atol=0.05)
        assert (logits.argmax(1) == one.best).float().mean() > 0.9
        found.append((one.ids, logits))
    assert (found[0][0] == found[1][0]).all()
    assert (found[0][1] - found[1][1]).abs().max() < 0.3


def test_features_are_shared_and_computed_once(train, tmp_path, monkeypatch):
    shared = ("--features", tmp_path / "features")
    assert train("medusa", tmp_path / "one", *shared).code == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "features").iterdir()}
    assert train("medusa", tmp_path / "two", "--depth", 2, *shared).code == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "features").iterdir()} == before
    assert not (tmp_path / "two" / "features").exists()
    assert train("medusa", tmp_path / "four", *shared, "--resume").code == 0  # broken off before its first step
    (tmp_path / "features" / "00001.safetensors").unlink()
    assert train("medusa", tmp_path / "three", *shared).code == 0
    assert before.keys() == set((tmp_path / "features").iterdir())
    one, three = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "three"))
    assert all((array == three[name]).all() for name, array in one.items())


# ---- where sequences come from
def test_the_model_goes_on_from_prompts(train, tmp_path):
    words = ("--generate", 24, "--prompt", 12, "--chat", 0.5, "--temperature", 1.0)
    assert train("medusa", tmp_path / "out", *words).code == 0
    runs = _read_runs(tmp_path / "out" / "features" / "texts.jsonl")
    assert all(0 < run.begin < len(run.ids) <= run.begin + 24 for run in runs)
    chats = [run for run in runs if CONFIG["bos_token_id"] == run.ids[0] and 258 in run.ids[: run.begin]]
    assert 0 < len(chats) < len(runs)
    assert len({run.ids[run.begin :] for run in runs}) > len(runs) // 2


def test_a_log_gives_prompts_and_outputs(train, home, tmp_path):
    lines = [
        {"prompt": "the man in an inn " * 3, "output": "then and the hen ran there, " * 3},
        {"prompt": [256, 65, 66], "output": [67] * 60},
        {
            "body": {
                "messages": [{"role": "user", "content": "an hen"}, {"role": "assistant", "content": "there " * 20}]
            }
        },
        {"text": "a rather thin theme " * 5},
        {"messages": [{"role": "user", "content": "nobody answered"}]},
    ]
    (home / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert train("medusa", tmp_path / "out", data="log.jsonl").code == 0
    runs = _read_runs(tmp_path / "out" / "features" / "texts.jsonl")
    assert len(runs) == 4 and runs[1].ids == (256, 65, 66, *[67] * 60) and runs[1].begin == 3
    assert runs[2].begin > 0 and runs[3].begin == 0


def test_a_request_says_at_which_temperature_it_is_answered(train, home, tmp_path):
    asked = {"messages": [{"role": "user", "content": "then the hen"}]}
    (home / "asked.jsonl").write_text("\n".join(map(json.dumps, [asked | {"temperature": 0}, asked] * 12)))
    words = ("--generate", 24, "--temperature", 2.0)
    assert train("medusa", tmp_path / "out", *words, data="asked.jsonl").code == 0
    answers = [run.ids[run.begin :] for run in _read_runs(tmp_path / "out" / "features" / "texts.jsonl")]
    assert len(answers) == 24
    likeliest = max(answers, key=answers.count)
    assert answers.count(likeliest) == 12 and len(set(answers)) > 12


def test_questions_are_asked_in_the_template_of_the_model(train, tmp_path):
    assert len(set(questions())) == len(list(questions())) > 5000
    assert train("medusa", tmp_path / "out", "--generate", 24, data="questions", sizes=SMALL).code == 0
    runs = _read_runs(tmp_path / "out" / "features" / "texts.jsonl")
    assert len(runs) == 1200 // (64 + 24) and len({run.ids[: run.begin] for run in runs}) == len(runs)
    assert all(258 in run.ids[: run.begin] for run in runs)
