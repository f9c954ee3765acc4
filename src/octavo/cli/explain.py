"""`octavo explain MODEL`: the program that runs, operator by operator, from headers alone.

Works on a model, or on a folder or config.json that holds a configuration and no weights (sizes are then assumed).
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

from octavo.cli.screen import human, short, table
from octavo.errors import ConfigError, UsageError, in_file
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.ir import Program
from octavo.program.lower import CacheDType, default_kinds, lower
from octavo.program.report import PROMPT_TOKENS, ExplainRow, explain_rows, explain_totals
from octavo.runner.model import model_config, plain_program
from octavo.weights import fetch
from octavo.weights.checkpoint import UNSAFE_SUFFIXES, open_checkpoint
from octavo.weights.match import match

_WEIGHTS = (".gguf", *UNSAFE_SUFFIXES)


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="a name, a GGUF file, a safetensors folder, or a config.json")
    parser.add_argument("--plain", action="store_true", help="the program as the model family wrote it")
    parser.add_argument("--layers", metavar="A[:B]", help="only the operators of these layers")
    parser.add_argument("--context", type=int, default=0, metavar="N", help="tokens in the cache before the one token")
    parser.add_argument("--kv-dtype", choices=("bf16", "i8"), default="bf16", help="how keys and values are stored")


def run(args: argparse.Namespace) -> int:
    if args.context < 0:
        raise UsageError("--context is at least 0", param="context")
    program = load_program(args.model, plain=args.plain, kv_dtype=args.kv_dtype)
    shown = [row for row in explain_rows(program, args.context) if _in_layers(row, args.layers)]
    if not shown:
        raise UsageError(f"--layers {args.layers}: this model has no such layer", param="layers")
    columns = ("operator", "in", "out", "weights", "bytes", "FLOPs, 1 token", f"FLOPs, {PROMPT_TOKENS} tokens")
    table(program.name, columns, [_cells(row) for row in shown])
    totals = explain_totals(program, args.context)
    assumed = " (assumed: no tensor headers)" if totals.assumed else ""
    rows = [
        ("parameters", short(totals.parameters)),
        (f"weight bytes{assumed}", human(totals.weight_bytes)),
        *((f"KV bytes per token, {group}", f"{size:,}") for group, size in totals.kv_bytes_per_token),
        (f"one token after {args.context}", f"{short(totals.token.flops)}FLOP, {human(totals.token.bytes)} moved"),
        (f"a prompt of {PROMPT_TOKENS}", f"{short(totals.prompt.flops)}FLOP, {human(totals.prompt.bytes)} moved"),
    ]
    table("", ("total", ""), rows)
    return 0


def load_program(model: str, *, plain: bool = False, kv_dtype: CacheDType = "bf16") -> Program:
    """The native executor's program of a model, or of a bare configuration."""
    config_file = _bare_config(model)
    if config_file is not None:
        with in_file(config_file):
            program = program_for(ModelConfig.from_mapping(_read(config_file)))
        return program if plain else lower(program, default_kinds(program), kv_dtype=kv_dtype)
    with closing(open_checkpoint(fetch.resolve(model))) as checkpoint:
        program = plain_program(checkpoint, model_config(checkpoint))
        sources = match(program.weights, checkpoint)
        kinds = {name: checkpoint.kind_of(source) for name, source in sources.items()}
        sizes = {name: checkpoint.stored_bytes(source) for name, source in sources.items()}
        return program if plain else lower(program, kinds, sizes, kv_dtype=kv_dtype)


def _bare_config(model: str) -> Path | None:
    path = Path(model)
    if path.is_dir() and (path / "config.json").is_file():
        weights = [file for file in path.iterdir() if ".safetensors" in file.name or file.suffix in _WEIGHTS]
        return None if weights else path / "config.json"
    return path if path.suffix == ".json" and path.is_file() else None


def _read(path: Path) -> dict[str, object]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"not valid JSON: {reason}") from None
    if not isinstance(data, dict):
        raise ConfigError("not a JSON object")
    return data


def _in_layers(row: ExplainRow, layers: str | None) -> bool:
    if layers is None:
        return True
    first, _, last = layers.partition(":")
    if not first.isdigit() or not (last or first).isdigit():
        raise UsageError(f"--layers is A or A:B, not {layers!r}", param="layers")
    # The last operator of a layer writes the next one's x: its weight says where it belongs.
    name = row.weights[0][0] if row.weights else row.outs[0][0]
    layer = name.split(".")[0]
    return layer.isdigit() and int(first) <= int(layer) <= int(last or first)


def _cells(row: ExplainRow) -> tuple[str, ...]:
    parts = f" ({', '.join(row.parts)})" if row.parts else ""
    return (
        f"{row.kind}{parts}",
        " ".join(f"{name} {shape}" for name, shape in row.ins),
        " ".join(f"{name} {shape}" for name, shape in row.outs),
        " ".join(f"{name} {list(shape)} {kind}" for name, shape, kind in row.weights),
        human(row.weight_bytes) if row.weight_bytes else "",
        short(row.token.flops),
        short(row.prompt.flops),
    )
