"""Flags that several commands share, and where their values come from: flag > environment > --config FILE > default.

A flag's value is looked up once, in `resolve`; unknown keys of the file and bad values are errors that name them.
"""

from __future__ import annotations

import argparse
import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from octavo.cli.parser import boolean
from octavo.config import SPECULATE, ActivationKind, EngineConfig, KVDType, speculates
from octavo.errors import ConfigError, MissingFileError, OctavoError, UsageError
from octavo.request import SamplingParams

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True, slots=True)
class Flag:
    """`name` in flag spelling. `parse` turns text into the value; choices as argparse has them."""

    name: str
    help: str
    parse: Callable[[str], Any] = str
    metavar: str = "N"
    choices: tuple[str, ...] = ()
    default: Any = None

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def env(self) -> str:
        return "OCTAVO_" + self.key.upper()


def size(text: str) -> int:
    """Bytes from `4GiB`, `512MB`, `1000000`."""
    word = text.strip().lower().removesuffix("b")
    digits = word.rstrip("kmgti")
    try:
        return int(float(digits) * _UNITS[word[len(digits) :]])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"not a size: {text!r} (write 4GiB, 512MB or a number of bytes)") from None


def texts(text: str) -> tuple[str, ...]:
    """One text. A flag that is given again, and a list in the file, add further ones."""
    return (text,)


def integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"not whole numbers with commas between them: {text!r}") from None


def names(text: str) -> tuple[str, ...]:
    """Words with commas between them; `off` is none."""
    return tuple(part for part in text.split(",") if part and part != "off")


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"not a whole number: {text!r}") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"not a number: {text!r}") from None


def speculation(text: str) -> str:
    if not speculates(text):
        raise ValueError(f"not one of {', '.join(SPECULATE)}: {text!r}")
    return text


ENGINE_FLAGS: tuple[Flag, ...] = (
    Flag("executor", "native kernels, or the torch reference", choices=("native", "reference"), default="native"),
    Flag("dtype", "of the reference executor", choices=("auto", "float32", "bfloat16"), default="auto"),
    Flag("kv-dtype", "how keys and values are stored", choices=get_args(KVDType), default="auto"),
    Flag("threads", "kernel threads (default: physical cores)", whole),
    Flag("isa", "force an instruction-set class of the native kernels", choices=("portable", "avx2", "avx512", "amx")),
    Flag(
        "activations",
        "what linears over i8 and u4 weights eat; auto: what is fastest here inside the fidelity bars",
        choices=get_args(ActivationKind),
        default="auto",
    ),
    Flag("max-num-seqs", "requests that run at once", whole, default=64),
    Flag("max-num-batched-tokens", "tokens computed in one step", whole, default=512),
    Flag("max-logit-rows", "logit rows of one step", whole, default=256),
    Flag("max-model-len", "longest prompt plus output (default: the model's)", whole),
    Flag("kv-memory", "memory of the KV cache, e.g. 4GiB (default: 60 %% of what is free)", size, "SIZE"),
    Flag("num-blocks", "size of the KV cache in blocks, instead of --kv-memory", whole),
    Flag("block-tokens", "tokens of one KV block; a multiple of 16 for the native kernels", whole, default=16),
    Flag("enable-prefix-caching", "reuse the KV of equal prefixes", boolean, default=True),
    Flag("packed-cache", "keep packed weights on disk, for faster loads later", choices=("off", "on"), default="off"),
    Flag(
        "speculate",
        f"who proposes tokens ahead, auto as far as it pays: {', '.join(SPECULATE)}",
        speculation,
        "KIND",
        default="auto",
    ),
    Flag(
        "verify",
        "how drafts are accepted; equal: text as without drafts; residual, block: distributed so; typical: neither",
        choices=("equal", "residual", "block", "typical"),
        default="equal",
    ),
    Flag("journal", "write every request and plan here, for `octavo replay`", metavar="FILE"),
    Flag("plans-outstanding", "steps planned before the first commits", whole, default=1),
    Flag("task", "auto: encoders embed, all others generate", choices=("auto", "generate", "embed"), default="auto"),
    Flag(
        "pooling",
        "rows that an embedding is made of (default: what the checkpoint says)",
        choices=("auto", "last", "mean", "cls"),
        default="auto",
    ),
    Flag("normalize", "scale embeddings to length 1", boolean, default=True),
)

SAMPLING_FLAGS: tuple[Flag, ...] = (
    Flag("temperature", "0 is greedy", number, "X", default=0.0),
    Flag("top-p", "nucleus mass", number, "X", default=1.0),
    Flag("top-k", "most likely tokens kept; 0 is off", whole, default=0),
    Flag("min-p", "least probability, relative to the best", number, "X", default=0.0),
    Flag("repetition-penalty", "over prompt and output", number, "X", default=1.0),
    Flag("presence-penalty", "over the output", number, "X", default=0.0),
    Flag("frequency-penalty", "over the output", number, "X", default=0.0),
    Flag("seed", "of the noise; minted when absent", whole),
    Flag("max-tokens", "longest output (default: what fits)", whole),
    Flag("min-tokens", "no end before so many tokens", whole, default=0),
    Flag("stop", "string that ends the output; may be given several times", texts, "TEXT", default=()),
    Flag("stop-token-ids", "ids that end the output, comma-separated", integers, "IDS", default=()),
    Flag("ignore-eos", "do not stop at the end-of-text token", boolean, default=False),
)

SERVED_MODEL_NAME = Flag("served-model-name", "name that clients use (default: the model's)", metavar="NAME")

SERVE_FLAGS: tuple[Flag, ...] = (
    Flag("host", "address to bind", metavar="ADDRESS", default="127.0.0.1"),
    Flag("port", "0 takes a free one and prints it", whole, default=8737),
    SERVED_MODEL_NAME,
    Flag(
        "model",
        "a further model, loaded when it is asked for, with engine flags of its own; may be given several times",
        texts,
        metavar="MODEL[,FLAG=VALUE...]",
        default=(),
    ),
    Flag("alias", "a further name of a model; may be given several times", texts, metavar="NAME=MODEL", default=()),
    Flag("memory-budget", "of all loaded models (default with several: 80 %% of what is free)", size, "SIZE"),
    Flag("idle-unload", "a model that nobody used for so long is unloaded (default: never)", number, "SECONDS"),
    Flag("load-wait", "a request waits so long for its model to be loaded", number, "SECONDS", default=60.0),
    Flag(
        "api-key-file",
        "one API key a line, with limits of its own behind it (or OCTAVO_API_KEY in the environment)",
        metavar="FILE",
    ),
    Flag("insecure-no-auth", "serve beyond loopback without a key", boolean, default=False),
    Flag(
        "allowed-host",
        "further name that a Host header may carry; may be given several times",
        texts,
        "NAME",
        default=(),
    ),
    Flag("admin-socket", "unix socket for the operator: list and abort requests, drain, unload", metavar="PATH"),
    Flag("max-queued-requests", "sequences that may wait (default: 4 x --max-num-seqs, at least 64)", whole),
    Flag("max-queued-tokens", "prompt tokens that may wait (default: what a minute computes, as measured)", whole),
    Flag("max-key-requests", "requests that one API key may have open at once (default: any number)", whole),
    Flag("max-key-queued-tokens", "prompt tokens of one API key that may wait (default: any number)", whole),
    Flag("key-requests-per-minute", "requests of one API key in a minute (default: any number)", whole),
    Flag("key-tokens-per-minute", "prompt and output tokens of one API key in a minute (default: any number)", whole),
    Flag("wrong-keys-per-minute", "wrong API keys from one address, before it is refused; 0 never", whole, default=20),
    Flag("queue-timeout", "a request whose prompt is not begun by then gets 503 (default: never)", number, "SECONDS"),
    Flag("first-token-timeout", "a request without output by then gets 504 (default: never)", number, "SECONDS"),
    Flag("request-timeout", "a request that has not ended by then gets 504 (default: never)", number, "SECONDS"),
    Flag("log-format", "a line a request on stderr, or none", choices=("text", "json", "off"), default="text"),
    Flag("metrics-alias", "names of another engine beside ours at /metrics", choices=("vllm",)),
    Flag("otel", "send spans of requests to OTEL_EXPORTER_OTLP_ENDPOINT (extra octavo[otel])", boolean, default=False),
    Flag("keep-prompts", "keep prompts for `octavo explain --request`", boolean, default=False),
)

BENCH_FLAGS: tuple[Flag, ...] = (
    Flag("prompt-tokens", "length of a prompt of the prefill", whole, default=512),
    Flag("prompts", "prompts of the prefill, submitted at once", whole, default=1),
    Flag("context", "tokens before the first decoded one", whole, default=128),
    Flag("batch", "decode batch sizes, comma-separated", integers, "N,...", default=(1, 8, 32)),
    Flag("decode-steps", "decoded tokens a request", whole, default=64),
    Flag("repeats", "medians are over so many runs", whole, default=3),
    Flag(
        "workload",
        "speeds: prefill and decode apart; mixed: 256 sequences, inputs and outputs of 100 to 1024 tokens",
        choices=("speeds", "mixed"),
        default="speeds",
    ),
    Flag(
        "speculate",
        "compare these kinds of drafters with plain decoding, in turns; forced: what a plain run said",
        names,
        "KIND,...",
        default=(),
    ),
    Flag(
        "texts",
        "of --speculate: code, json, summary, prose, chat; NAME@T: at temperature T",
        names,
        "NAME,...",
        default=("code", "json", "summary", "prose"),
    ),
    Flag("pairs", "runs of each kind beside a plain one, per text and batch", whole, default=30),
    Flag("scale", "share of the sequences of --workload mixed", number, "F", default=1.0),
)

ALL_FLAGS = (*ENGINE_FLAGS, *SAMPLING_FLAGS, *SERVE_FLAGS, *BENCH_FLAGS)


def named(*names: str) -> tuple[Flag, ...]:
    """Some of the engine's flags, in the order of ENGINE_FLAGS."""
    return tuple(flag for flag in ENGINE_FLAGS if flag.name in names)


def add_flags(parser: argparse.ArgumentParser, flags: Sequence[Flag], title: str) -> None:
    """Adds flags whose argparse default is None, so that `resolve` can tell what was given."""
    group = parser.add_argument_group(title)
    for flag in flags:
        options: dict[str, Any] = {"help": f"{flag.help}{_default_text(flag)}", "dest": flag.key, "default": None}
        if flag.parse is boolean:
            options["action"] = argparse.BooleanOptionalAction
        elif flag.choices:
            options["choices"] = flag.choices
        else:
            options |= {"metavar": flag.metavar, "action": "append" if flag.parse is texts else "store"}
        group.add_argument(f"--{flag.name}", **options)
    if not any(action.dest == "config" for action in parser._actions):
        parser.add_argument("--config", metavar="FILE", help="TOML file with the same names as keys")


def resolve(args: argparse.Namespace, flags: Sequence[Flag]) -> dict[str, Any]:
    """Values of `flags` by key. Raises UsageError or ConfigError that names the flag, variable or key at fault.

    One file may serve every command: it may set any flag of any of them, and nothing else.
    """
    path, origin = args.config, "--config"
    if path is None and os.environ.get("OCTAVO_CONFIG"):
        path, origin = os.environ["OCTAVO_CONFIG"], "OCTAVO_CONFIG"
    file = _read_file(path, origin) if path else {}
    values = {}
    for flag in flags:
        given, source = getattr(args, flag.key, None), f"--{flag.name}"
        fault: type[OctavoError] = UsageError
        if given is None and os.environ.get(flag.env):
            given, source = os.environ[flag.env], flag.env
        if given is None and flag.key in file:
            given, source, fault = file[flag.key], f"{path}: {flag.key}", ConfigError
        try:
            values[flag.key] = flag.default if given is None else parsed(flag, given)
        except ValueError as error:
            raise fault(f"{source}: {error}", param=flag.key) from None
    return values


def engine_config(args: argparse.Namespace, **over: Any) -> EngineConfig:
    return EngineConfig(model=args.model, **{**resolve(args, ENGINE_FLAGS), **over})


def sampling_params(args: argparse.Namespace, **over: Any) -> SamplingParams:
    return SamplingParams(**{**resolve(args, SAMPLING_FLAGS), **over})


def near(word: str, known: Iterable[str]) -> str:
    """What an unknown word may have meant, as the end of a message."""
    found = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {found[0]}?)" if found else ""


def _default_text(flag: Flag) -> str:
    default = ",".join(map(str, flag.default)) if isinstance(flag.default, tuple) else str(flag.default).lower()
    return "" if flag.default in (None, ()) else f" (default: {default})"


def parsed(flag: Flag, given: Any) -> Any:
    """Of a text, or of what TOML holds: a list only where several values make sense. Raises ValueError."""
    if isinstance(given, list) and flag.parse is texts and all(isinstance(each, str) for each in given):
        return tuple(given)
    if isinstance(given, list) and flag.parse is integers:
        given = ",".join(map(str, given))
    if not isinstance(given, (str, int, float)):
        raise ValueError(f"not a single value: {given!r}")
    if flag.choices and given not in flag.choices:
        raise ValueError(f"not one of {', '.join(flag.choices)}: {given!r}")
    return flag.parse(str(given))


def _read_file(path: str, origin: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file ({origin})", code="file_missing") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise MissingFileError(f"{path}: {error.strerror} ({origin})") from None
    names = {flag.key for flag in ALL_FLAGS}
    for key in data:
        if key.replace("-", "_") not in names:
            raise ConfigError(f"{path}: unknown key {key!r}{near(key.replace('-', '_'), names)}", param=key)
    return {key.replace("-", "_"): value for key, value in data.items()}
