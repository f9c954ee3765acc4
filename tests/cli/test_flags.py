"""Where values come from, and what a wrong one gets: flag > environment > file > default."""

import pytest

from octavo import errors
from octavo.cli import flags
from octavo.cli.main import COMMANDS, command_parser
from octavo.cli.reference import render
from octavo.errors import OctavoError


@pytest.fixture
def config(tmp_path):
    """config(text) -> path of a TOML file."""

    def write(text):
        path = tmp_path / "octavo.toml"
        path.write_text(text)
        return str(path)

    return write


def values(*words, command="run", table=flags.ALL_FLAGS):
    return flags.resolve(command_parser(command).read(["model", *words]), table)


def test_through_a_command(octavo, chain, config, monkeypatch):
    words = ("run", chain, "x", "--threads", 1)
    file = ("--config", config("max-tokens = 1"))
    assert octavo(*words).out == "hi\n"
    assert octavo(*words, *file).out == "h\n"
    monkeypatch.setenv("OCTAVO_MAX_TOKENS", "2")
    assert octavo(*words, *file).out == "hi\n"
    assert octavo(*words, *file, "--max-tokens", 1).out == "h\n"


@pytest.mark.parametrize("flag", flags.ALL_FLAGS, ids=lambda flag: flag.name)
def test_every_flag_from_everywhere(flag, config, monkeypatch):
    """Four different values where the kind has as many; the higher source wins."""
    command = next(name for name, table in TABLES.items() if flag in table)
    texts = CHOICES.get(flag.name) or KINDS[flag.parse]
    wanted = [flag.parse(text) for text in texts]
    given = [f"--{flag.name}={texts[0]}"]
    quoted = texts[2] if flag.parse in (flags.whole, flags.number, flags.boolean) else f'"{texts[2]}"'
    monkeypatch.setenv("OCTAVO_CONFIG", config(f"{flag.key} = {quoted}"))
    assert values(command=command, table=[flag])[flag.key] == wanted[2]
    monkeypatch.setenv(flag.env, texts[1])
    assert values(command=command, table=[flag])[flag.key] == wanted[1]
    assert values(*given, command=command, table=[flag])[flag.key] == wanted[0]
    monkeypatch.setenv(flag.env, "")
    monkeypatch.delenv("OCTAVO_CONFIG")
    assert values(command=command, table=[flag])[flag.key] == flag.default


TABLES = {
    "run": (*flags.SAMPLING_FLAGS, *flags.ENGINE_FLAGS),
    "serve": flags.SERVE_FLAGS,
    "bench": flags.BENCH_FLAGS,
}
KINDS = {
    flags.whole: ("3", "4", "5"),
    flags.number: ("0.5", "0.25", "0.125"),
    flags.size: ("1GiB", "2GiB", "512MB"),
    flags.boolean: ("true", "false", "true"),
    flags.texts: ("a", "b", "c"),
    flags.names: ("a,b", "c", "d,e"),
    flags.integers: ("1,2", "3", "4,5"),
    str: ("a", "b", "c"),
}
CHOICES = {
    "speculate": ("ngram", "off", "suffix"),
    "verify": ("block", "residual", "typical"),
    "kv-dtype": ("i8", "bf16", "i8"),
    "workload": ("mixed", "speeds", "mixed"),
    "activations": ("int", "bf16", "i8g32"),
    "packed-cache": ("on", "off", "on"),
    "log-format": ("json", "off", "json"),
    "metrics-alias": ("vllm", "vllm", "vllm"),
    "task": ("embed", "generate", "embed"),
    "pooling": ("mean", "last", "cls"),
    "executor": ("native", "reference", "native"),
    "dtype": ("auto", "float32", "bfloat16"),
    "isa": ("avx2", "portable", "avx512"),
}


def test_lists_in_the_file(config):
    path = config('stop = ["a", "b"]\nstop_token_ids = [1, 2]\nbatch = [4]\nkv-memory = 1024\nignore_eos = true')
    found = values("--config", path)
    assert (found["stop"], found["stop_token_ids"], found["batch"]) == (("a", "b"), (1, 2), (4,))
    assert (found["kv_memory"], found["ignore_eos"]) == (1024, True)


@pytest.mark.parametrize(
    ("text", "bytes_"), [("1024", 1024), ("4GiB", 4 << 30), ("1.5k", 1500), ("512 MB", 512_000_000), ("2Ti", 2 << 40)]
)
def test_sizes(text, bytes_):
    assert flags.size(text) == bytes_


@pytest.mark.parametrize("text", ["", "GiB", "4X", "4GG", "inf", "nan", "1e400", "four"])
def test_no_sizes(refused, chain, text):
    assert "--kv-memory: not a size" in refused(2, "usage", "run", chain, "x", "--kv-memory", text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threads", "two"], "--threads: not a whole number: 'two'"),
        (["--threads", "1.5"], "--threads: not a whole number: '1.5'"),
        (["--temperature", "warm"], "--temperature: not a number: 'warm'"),
        (["--stop-token-ids", "1,b"], "--stop-token-ids: not whole numbers"),
        (["--ignore-eos=perhaps"], "--ignore-eos: not a boolean: 'perhaps'"),
        (["--executor", "magic"], "invalid choice: 'magic'"),
        (["--temprature", "1"], "unknown argument --temprature (did you mean --temperature?)"),
        (["--temp", "1"], "unknown argument --temp"),
        (["--max-tokens"], "--max-tokens: expected one argument"),
    ],
)
def test_wrong_flags(refused, chain, words, said):
    assert said in refused(2, "usage", "run", chain, "x", *words)


@pytest.mark.parametrize(
    ("words", "param"),
    [(["--temperature", -1], "temperature"), (["--temperature", "nan"], "temperature"), (["--top-p", 0], "top_p"),
     (["--top-k", -5], "top_k"), (["--seed", 2**70], "seed"), (["--min-tokens", 9, "--max-tokens", 2], "min_tokens"),
     (["--stop", ""], "stop")],
)  # fmt: skip
def test_values_out_of_range_are_refused_before_the_load(refused, words, param):
    assert param in refused(2, "invalid_value", "run", "smollm2:135m", "x", *words)


@pytest.mark.parametrize("name", ["threads", "max-num-seqs", "max-num-batched-tokens", "block-tokens", "num-blocks"])
def test_limits_are_at_least_one(refused, chain, name):
    assert f"{name.replace('-', '_')} must be at least 1" in refused(2, "usage", "run", chain, "x", f"--{name}", 0)


def test_limits_are_checked_by_every_command(refused, chain):
    for words in (("perplexity", chain, "no-text"), ("bench", chain), ("serve", chain)):
        assert "block_tokens must be at least 1" in refused(2, "usage", *words, "--block-tokens", 0)


def test_blocks_are_whole_pages(refused, chain):
    assert "block_tokens must be a multiple of 16" in refused(2, "usage", "run", chain, "x", "--block-tokens", 24)


@pytest.mark.parametrize("name", ["threads", "max-num-seqs", "num-blocks"])
def test_counts_have_an_end(refused, chain, name):
    assert f"{name.replace('-', '_')} must be at most" in refused(2, "usage", "run", chain, "x", f"--{name}", 2**40)


@pytest.mark.parametrize(("flag", "amount"), [("--num-blocks", 2**30), ("--kv-memory", "900TiB")])
def test_a_cache_beyond_the_memory_is_refused(refused, chain, flag, amount):
    assert f"lower {flag}" in refused(69, "no_resources", "run", chain, "x", flag, amount)


def test_a_wrong_variable_is_named(refused, chain, monkeypatch):
    monkeypatch.setenv("OCTAVO_THREADS", "many")
    assert "OCTAVO_THREADS: not a whole number: 'many'" in refused(2, "usage", "run", chain, "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_tokenz = 3", "unknown key 'max_tokenz' (did you mean max_tokens?)"),
        ("[engine]\nthreads = 1", "unknown key 'engine'"),
        ("threads = 'two'", "threads: not a whole number: 'two'"),
        ("threads = true", "threads: not a whole number: 'True'"),
        ("threads = [1, 2]", "threads: not a single value"),
        ("threads = {a = 1}", "threads: not a single value"),
        ("executor = 'magic'", "executor: not one of native, reference: 'magic'"),
        ("stop = [1]", "stop: not a single value"),
        ("threads = ", "not valid TOML"),
        ("ignore_eos = 3", "ignore_eos: not a boolean"),
    ],
)
def test_wrong_files(refused, chain, config, text, said):
    path = config(text)
    line = refused(78, "bad_config", "run", chain, "x", "--config", path)
    assert said in line and path in line


def test_absent_files(refused, chain, tmp_path, monkeypatch):
    assert "(--config)" in refused(66, "file_missing", "run", chain, "x", "--config", tmp_path / "absent.toml")
    assert str(tmp_path) in refused(66, "file_missing", "run", chain, "x", "--config", tmp_path)
    monkeypatch.setenv("OCTAVO_CONFIG", str(tmp_path / "absent.toml"))
    assert "(OCTAVO_CONFIG)" in refused(66, "file_missing", "run", chain, "x")


def test_every_field_of_the_engine_is_a_flag():
    from dataclasses import fields

    from octavo.config import EngineConfig

    keys = {flag.key for flag in flags.ALL_FLAGS}
    assert {field.name for field in fields(EngineConfig)} - {"model"} <= keys


@pytest.mark.parametrize("command", COMMANDS)
def test_help(octavo, command):
    outcome = octavo(command, "--help")
    assert outcome.code == 0 and outcome.out.startswith(f"usage: octavo {command}") and outcome.err == ""


def test_the_command_itself(octavo, refused):
    listed = octavo("--help")
    assert listed.code == 0 and all(f"\n    {command}" in listed.out for command in COMMANDS)
    bare = octavo()
    assert bare.code == 2 and bare.out == "" and "serve" in bare.err
    assert octavo("--version").out.startswith("octavo ")
    assert "did you mean serve?" in refused(2, "usage", "serv")
    assert "commands are run, serve" in refused(2, "usage", "zzz")
    assert "--zzz" in refused(2, "usage", "--zzz")
    assert "model" in refused(2, "usage", "run") and "prompt" not in refused(2, "usage", "run")


def test_every_exit_code_is_documented():
    """Those of errors.py; what other rooms derive from them ends no command."""
    text = render()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OctavoError)]
    kinds.remove(OctavoError)
    rows = [f"| {kind.exit_code} | {kind.__name__} | {kind.default_code} |" for kind in kinds]
    assert len(rows) > 8 and all(row in text for row in rows)
