"""Flags that several commands share, and where their values come from: flag > environment > --config FILE > default.

A flag's value is looked up once, in `resolve`; unknown keys of the file and bad values are errors that name them.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import ConfigError, MissingFileError, UsageError
from octavo.request import SamplingParams

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


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
    digits = word.rstrip("kmgi")
    try:
        return int(float(digits) * _UNITS[word[len(digits) :]])
    except (KeyError, ValueError):
        raise ValueError(f"not a size: {text!r} (write 4GiB, 512MB or a number of bytes)") from None


def boolean(text: str) -> bool:
    word = str(text).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"not a boolean: {text!r} (write true or false)")


def texts(text: str) -> tuple[str, ...]:
    return (text,)


def integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


ENGINE_FLAGS: tuple[Flag, ...] = (
    Flag("executor", "native kernels, or the torch reference", choices=("native", "reference"), default="native"),
    Flag("dtype", "of the reference executor", choices=("auto", "float32", "bfloat16"), default="auto"),
    Flag("threads", "kernel threads (default: physical cores)", int),
    Flag("isa", "force an instruction-set class", choices=("portable", "avx2", "avx512", "amx")),
    Flag("max-num-seqs", "requests that run at once", int, default=64),
    Flag("max-num-batched-tokens", "tokens computed in one step", int, default=512),
    Flag("max-logit-rows", "logit rows of one step", int, default=256),
    Flag("max-model-len", "longest prompt plus output (default: the model's)", int),
    Flag("kv-memory", "memory of the KV cache, e.g. 4GiB (default: 60 %% of what is free)", size, "SIZE"),
    Flag("block-tokens", "tokens of one KV block", int, default=16),
    Flag("enable-prefix-caching", "reuse the KV of equal prefixes", boolean, "BOOL", default=True),
    Flag("plans-outstanding", "steps planned before the first commits", int, default=1),
)

SAMPLING_FLAGS: tuple[Flag, ...] = (
    Flag("temperature", "0 is greedy", float, "X", default=0.0),
    Flag("top-p", "nucleus mass", float, "X", default=1.0),
    Flag("top-k", "most likely tokens kept; 0 is off", int, default=0),
    Flag("min-p", "least probability, relative to the best", float, "X", default=0.0),
    Flag("repetition-penalty", "over prompt and output", float, "X", default=1.0),
    Flag("presence-penalty", "over the output", float, "X", default=0.0),
    Flag("frequency-penalty", "over the output", float, "X", default=0.0),
    Flag("seed", "of the noise; minted when absent", int),
    Flag("max-tokens", "longest output (default: what fits)", int),
    Flag("min-tokens", "no end before so many tokens", int, default=0),
    Flag("stop", "string that ends the output", texts, "TEXT", default=()),
    Flag("stop-token-ids", "ids that end the output, comma-separated", integers, "IDS", default=()),
    Flag("ignore-eos", "do not stop at the end-of-text token", boolean, "BOOL", default=False),
)

SERVE_FLAGS: tuple[Flag, ...] = (
    Flag("host", "address to bind", metavar="ADDRESS", default="127.0.0.1"),
    Flag("port", "0 takes a free one and prints it", int, default=8737),
    Flag("served-model-name", "name that clients use (default: the model's)", metavar="NAME"),
    Flag("api-key-file", "file with one API key a line (or OCTAVO_API_KEY in the environment)", metavar="FILE"),
    Flag("insecure-no-auth", "serve beyond loopback without a key", boolean, "BOOL", default=False),
)

BENCH_FLAGS: tuple[Flag, ...] = (
    Flag("prompt-tokens", "length of the prefill", int, default=512),
    Flag("context", "tokens before the first decoded one", int, default=128),
    Flag("batch", "decode batch sizes, comma-separated", integers, "N,...", default=(1, 8, 32)),
    Flag("decode-steps", "decoded tokens a request", int, default=64),
    Flag("repeats", "medians are over so many runs", int, default=3),
)

ALL_FLAGS = (*ENGINE_FLAGS, *SAMPLING_FLAGS, *SERVE_FLAGS, *BENCH_FLAGS)


def add_flags(parser: argparse.ArgumentParser, flags: Sequence[Flag], title: str) -> None:
    """Adds flags whose argparse default is None, so that `resolve` can tell what was given."""
    group = parser.add_argument_group(title)
    for flag in flags:
        options: dict[str, Any] = {"help": f"{flag.help}{_default_text(flag)}", "dest": flag.key, "default": None}
        if flag.choices:
            options["choices"] = flag.choices
        else:
            options["metavar"] = flag.metavar
        group.add_argument(f"--{flag.name}", **options)
    if not any(action.dest == "config" for action in parser._actions):
        parser.add_argument("--config", metavar="FILE", help="TOML file with the same names as keys")


def resolve(args: argparse.Namespace, flags: Sequence[Flag]) -> dict[str, Any]:
    """Values of `flags` by key. Raises UsageError or ConfigError that names the flag, variable or key at fault.

    One file may serve every command: it may set any flag of any of them, and nothing else.
    """
    path = args.config or os.environ.get("OCTAVO_CONFIG")
    file = _read_file(path) if path else {}
    values = {}
    for flag in flags:
        given, source = getattr(args, flag.key, None), f"--{flag.name}"
        if given is None and flag.env in os.environ:
            given, source = os.environ[flag.env], flag.env
        if given is None and flag.key in file:
            given, source = file[flag.key], f"{path}: {flag.key}"
        values[flag.key] = flag.default if given is None else _parse(flag, given, source)
    return values


def engine_config(args: argparse.Namespace, **over: Any) -> EngineConfig:
    return EngineConfig(model=args.model, **{**resolve(args, ENGINE_FLAGS), **over})


def sampling_params(args: argparse.Namespace, **over: Any) -> SamplingParams:
    return SamplingParams(**{**resolve(args, SAMPLING_FLAGS), **over})


def _default_text(flag: Flag) -> str:
    return "" if flag.default in (None, ()) else f" (default: {str(flag.default).lower()})"


def _parse(flag: Flag, given: Any, source: str) -> Any:
    if flag.choices and given not in flag.choices:
        raise UsageError(f"{source} must be one of {', '.join(flag.choices)}, not {given!r}", param=flag.key)
    if isinstance(given, list):
        given = ",".join(map(str, given)) if flag.parse is integers else tuple(given)
    if isinstance(given, tuple):
        return given
    try:
        return flag.parse(str(given))
    except ValueError as error:
        text = str(error) if "not a" in str(error) else f"not a number: {given!r}"
        raise UsageError(f"{source}: {text}", param=flag.key) from None


def _read_file(path: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file (--config)", code="file_missing") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise MissingFileError(f"{path}: {error.strerror} (--config)") from None
    names = {flag.key for flag in ALL_FLAGS}
    for key in data:
        if key.replace("-", "_") not in names:
            raise ConfigError(f"{path}: unknown key {key!r}", param=key)
    return {key.replace("-", "_"): value for key, value in data.items()}
