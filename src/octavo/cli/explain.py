"""`octavo explain MODEL`: the program that runs, operator by operator, from headers alone.

Works on a model, or on a folder or config.json that holds a configuration and no weights (sizes are then assumed).
With --measure the native session runs it, and each operator's time stands beside the limit of this machine; with
--drafts it runs steps with further rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from octavo.backends.native.executor import choose_activations, choose_isa
from octavo.cli import explain_drafts, explain_request, flags, measured, roofline_svg
from octavo.cli.remote import HELP
from octavo.cli.screen import human, progress, short, table
from octavo.errors import ConfigError, UsageError, in_file
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.ir import Program
from octavo.program.lower import CacheDType, default_kinds, lower
from octavo.program.report import PROMPT_TOKENS, ExplainRow, explain_rows, explain_totals
from octavo.runner import machine
from octavo.runner.calibration import calibrated
from octavo.runner.measure import Workload, measure
from octavo.runner.model import plain_program
from octavo.weights import fetch
from octavo.weights.checkpoint import UNSAFE_SUFFIXES, open_checkpoint
from octavo.weights.match import match
from octavo.weights.stated import model_config

_WEIGHTS = (".gguf", *UNSAFE_SUFFIXES)


# Flags of the engine that decide what the program is, and those that decide besides what is measured.
LOWERING_FLAGS = flags.named("activations", "kv-dtype")
MEASURE_FLAGS = flags.named("threads", "isa", "block-tokens", "max-num-batched-tokens")
PROMPT, CONTEXT = 512, 128  # what --measure runs unless told otherwise


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", nargs="?", help="a name, a GGUF file, a safetensors folder, or a config.json")
    parser.add_argument("--plain", action="store_true", help="the program as the model family wrote it")
    parser.add_argument("--layers", metavar="A[:B]", help="only the operators of these layers")
    parser.add_argument(
        "--context", type=int, metavar="N", help=f"tokens in the cache before the one token (measured: {CONTEXT})"
    )
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    served = parser.add_argument_group("of a server, instead of a model")
    served.add_argument("--request", metavar="ID", help="where the time of this request went (its x-request-id)")
    served.add_argument("--url", help=HELP)
    group = parser.add_argument_group("measured")
    group.add_argument("--measure", action="store_true", help="run it, and time every operator beside its limit")
    group.add_argument("--drafts", action="store_true", help="run it: what a draft costs, how many are worth it")
    group.add_argument("--batch", type=int, metavar="N", help="requests that decode together (default: 1)")
    group.add_argument("--prefill", type=int, metavar="N", help=f"tokens of the prompt (default: {PROMPT})")
    group.add_argument("--all", action="store_true", help="a line an operator, not a line a kind")
    group.add_argument("--svg", metavar="FILE", help="write a roofline plot")
    group.add_argument("--recalibrate", action="store_true", help="measure the machine's limits anew")
    flags.add_flags(parser, LOWERING_FLAGS, "engine")
    flags.add_flags(parser, MEASURE_FLAGS, "engine, measured")


def run(args: argparse.Namespace) -> int:
    if args.request is not None:
        _check_request(args)
        return explain_request.run(args)
    if args.model is None or args.url is not None:
        raise UsageError("octavo explain MODEL, or octavo explain --request ID [--url URL]", param="model")
    if (args.context or 0) < 0:
        raise UsageError("--context is at least 0", param="context")
    _check(args)
    if args.drafts:
        return _drafts(args)
    return _measure(args) if args.measure else _explain(args)


def _drafts(args: argparse.Namespace) -> int:
    batches = (args.batch,) if args.batch else explain_drafts.BATCHES
    context = CONTEXT if args.context is None else args.context
    return explain_drafts.run(
        args.model, flags.engine_config(args, executor="native"), batches, context, as_json=args.json
    )


def _check_request(args: argparse.Namespace) -> None:
    """Nothing is accepted and then ignored."""
    for name, value in vars(args).items():
        if name not in ("request", "url", "json", "command", "config") and value not in (None, False):
            hint = ": --url names the server" if name == "model" else ""
            raise UsageError(f"--request goes without {name.replace('_', '-')}{hint}", param=name)


def _check(args: argparse.Namespace) -> None:
    """Nothing is accepted and then ignored."""
    only, both = ("prefill", "all", "svg", "recalibrate"), ("batch", *(flag.key for flag in MEASURE_FLAGS))
    runs = "drafts" if args.drafts else "measure"
    refused: tuple[str, ...] = (*only, *both)
    if args.drafts:
        refused = ("plain", "layers", "measure", *only)
    elif args.measure:
        refused = ("plain", "layers")
    for name in refused:
        if getattr(args, name):
            what = "is not for" if args.drafts or args.measure else "needs"
            raise UsageError(f"--{name.replace('_', '-')} {what} --{runs}", param=name)
    if (args.measure or args.drafts) and _bare_config(args.model) is not None:
        raise UsageError(f"--{runs} needs a model with weights", param=runs)


def _measure(args: argparse.Namespace) -> int:
    work = Workload(args.batch or 1, CONTEXT if args.context is None else args.context, args.prefill or PROMPT)
    config = flags.engine_config(args, executor="native")
    isa, _ = choose_isa(config.isa or os.environ.get("OCTAVO_ISA") or None)
    files = file_sizes(args.model)
    calibration, notes = calibrated(isa, config.threads or machine.topology().threads, renew=args.recalibrate)
    with progress("loading") as advance:
        found = measure(config, work, calibration, advance)
    for note in (*notes, *found.loaded.notes):
        print(f"note: {note}", file=sys.stderr)
    measured.show(found, work, calibration, files, args.all)
    if args.svg:
        title = (
            f"{args.model}: decode {work.batch} x 1 after {work.context}, prefill {work.prompt}; "
            f"{found.loaded.isa}, {found.loaded.threads} threads"
        )
        _write(Path(args.svg), roofline_svg.render(found, title))
    if args.json:
        print(json.dumps(measured.document(found, work, calibration, files, args.model)))
    return 0


def _explain(args: argparse.Namespace) -> int:
    context = args.context or 0
    chosen = flags.resolve(args, LOWERING_FLAGS)
    kv_dtype: CacheDType = "bf16" if chosen["kv_dtype"] == "auto" else chosen["kv_dtype"]
    program = load_program(args.model, plain=args.plain, activations=chosen["activations"], kv_dtype=kv_dtype)
    shown = [row for row in explain_rows(program, context) if _in_layers(row, args.layers)]
    if not shown:
        raise UsageError(f"--layers {args.layers}: this model has no such layer", param="layers")
    columns = ("operator", "in", "out", "weights", "bytes", "FLOPs, 1 token", f"FLOPs, {PROMPT_TOKENS} tokens")
    table(program.name, columns, [_cells(row) for row in shown])
    totals = explain_totals(program, context)
    assumed = " (assumed: no tensor headers)" if totals.assumed else ""
    rows = [
        ("parameters", short(totals.parameters)),
        (f"weight bytes{assumed}", human(totals.weight_bytes)),
        *((f"KV bytes per token, {group}", f"{size:,}") for group, size in totals.kv_bytes_per_token),
        *((f"bytes per sequence, {group}", f"{size:,}") for group, size in totals.state_bytes),
        (f"one token after {context}", f"{short(totals.token.flops)}FLOP, {human(totals.token.bytes)} moved"),
        (f"a prompt of {PROMPT_TOKENS}", f"{short(totals.prompt.flops)}FLOP, {human(totals.prompt.bytes)} moved"),
    ]
    if _bare_config(args.model) is None:
        rows.insert(2, ("weight bytes in the file", human(sum(file_sizes(args.model).values()))))
    table("", ("total", ""), rows)
    if args.json:
        operators = [asdict(row) for row in shown]
        print(json.dumps({"model": args.model, "operators": operators, "totals": asdict(totals)}))
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--svg {path}: {error.strerror}", param="svg") from None


def file_sizes(model: str) -> dict[str, int]:
    """Weight name -> bytes of its tensor on disk."""
    with closing(open_checkpoint(fetch.resolve(model))) as checkpoint:
        program = plain_program(checkpoint, model_config(checkpoint))
        return {name: checkpoint.file_bytes(source) for name, source in match(program.weights, checkpoint).items()}


def load_program(
    model: str, *, plain: bool = False, activations: str = "auto", kv_dtype: CacheDType = "bf16"
) -> Program:
    """The native executor's program of a model, or of a bare configuration."""
    config_file, eaten = _bare_config(model), choose_activations(activations)
    if config_file is not None:
        with in_file(config_file):
            program = program_for(ModelConfig.from_mapping(_read(config_file)))
        return program if plain else lower(program, default_kinds(program), None, eaten, kv_dtype=kv_dtype)
    with closing(open_checkpoint(fetch.resolve(model))) as checkpoint:
        program = plain_program(checkpoint, model_config(checkpoint))
        sources = match(program.weights, checkpoint, program.spare)
        kinds = {name: checkpoint.kind_for(program.weights[name], source) for name, source in sources.items()}
        sizes = {
            name: checkpoint.stored_bytes(source, kinds[name], program.weights[name].prep)
            for name, source in sources.items()
        }
        return program if plain else lower(program, kinds, sizes, eaten, kv_dtype=kv_dtype)


def config_of(model: str) -> ModelConfig:
    """What a checkpoint, or a bare configuration, states. Raises ConfigError, MissingFileError."""
    config_file = _bare_config(model)
    if config_file is not None:
        with in_file(config_file):
            return ModelConfig.from_mapping(_read(config_file))
    with closing(open_checkpoint(fetch.resolve(model))) as checkpoint:
        return model_config(checkpoint)


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
        " ".join(f"{name} {shape} {dtype}" for name, shape, dtype in row.ins),
        " ".join(f"{name} {shape} {dtype}" for name, shape, dtype in row.outs),
        " ".join(f"{name} {list(shape)} {kind}" for name, shape, kind in row.weights),
        human(row.weight_bytes) if row.weight_bytes else "",
        short(row.token.flops),
        short(row.prompt.flops),
    )
