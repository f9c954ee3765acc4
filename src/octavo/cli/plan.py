"""`octavo plan MODEL`: does it fit, how many users, how fast, what limits it, what would change it.

From a configuration or a checkpoint's headers, and a machine: this one as `octavo calibrate` measured it, a device by
name, or a file. No weight is read. Several devices are arithmetic, and are marked so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo.cli import plan_report
from octavo.cli.explain import config_of, load_program
from octavo.cli.machines import is_host, machine_of
from octavo.cli.screen import console, table
from octavo.errors import UsageError
from octavo.model_config import ModelConfig
from octavo.models.known import KNOWN
from octavo.models.registry import program_for
from octavo.program.ir import Program
from octavo.program.lower import CacheDType, default_kinds, lower
from octavo.sim import advice
from octavo.sim.parallel import Parallel, is_expert
from octavo.sim.planning import Plan, Wish, plan

WEIGHTS = {"bf16": "bf16", "q8": "i8", "q4": "u4", "fp8": "fp8"}
KV_KINDS = ("bf16", "i8")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to plan for. kv_heads: 0 where its cache is latent."""

    name: str
    program: Callable[[str | None, CacheDType], Program]  # by weights and kind of the cache
    kv_heads: int
    layers: int
    hidden: int
    max_context: int


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help=f"a model, a config.json, or one of {', '.join(KNOWN)}")
    add_machine(parser)
    parser.add_argument("--context", type=int, default=4096, metavar="N", help="tokens of each request (default: 4096)")
    parser.add_argument("--requests", type=int, default=0, metavar="N", help="at once (default: as many as fit)")
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens of a prompt (default: 512)")
    parser.add_argument("--ttft", type=float, metavar="S", help="seconds that the first token may take")
    parser.add_argument("--gap", type=float, metavar="S", help="seconds from token to token")
    parser.add_argument("--speculate", type=float, default=0.0, metavar="F", help="drafts accepted a step, on average")
    parser.add_argument("--batch-tokens", type=int, default=2048, metavar="N", help="tokens of a step (default: 2048)")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a report with roofline and curves")


def add_machine(parser: argparse.ArgumentParser) -> None:
    """What a model is planned for and simulated on."""
    parser.add_argument(
        "--machine", default="this", metavar="M", help="this, a100, h100, h200, b200 or a file (default: this)"
    )
    parser.add_argument("--count", type=int, default=1, metavar="N", help="devices that share the model")
    for name, text in (("tp", "tensor"), ("pp", "pipeline"), ("ep", "expert")):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{text} parallel (default: tp takes them all)")
    parser.add_argument("--weights", choices=tuple(WEIGHTS), help="held as (default: as the checkpoint has them)")
    parser.add_argument("--kv-dtype", choices=KV_KINDS, default="bf16", help="of the cache (default: bf16)")


def run(args: argparse.Namespace) -> int:
    _check(args)
    machine, notes = machine_of(args.machine)
    subject = subject_of(args.model, integers=is_host(args.machine, machine))
    parallel = parallel_of(args, subject)
    wish = Wish(args.context, args.requests, args.prompt, args.ttft, args.gap, args.batch_tokens)

    programs: dict[tuple[str | None, CacheDType], Program] = {}

    def made(wish: Wish = wish, parallel: Parallel = parallel, **over: Any) -> Plan:
        kinds: dict[str, Any] = {"weights": args.weights, "kv_dtype": args.kv_dtype} | over
        key = kinds["weights"], kinds["kv_dtype"]
        program = programs[key] if key in programs else programs.setdefault(key, subject.program(*key))
        return plan(program, machine, wish, parallel, max_context=subject.max_context, drafts=args.speculate)

    found = made()
    helping = advice.changes(found, list(_tried(args, subject, parallel, wish, made)))
    for note in notes:
        console(stderr=True).print(f"note: {note}")
    show(found, subject.name, helping)
    if args.html:
        write(Path(args.html), plan_report.render(found, subject.name, helping), "--html")
    if args.json:
        print(json.dumps(document(found, subject.name, helping)))
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("context", "prompt", "batch_tokens", "count"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} is at least 1", param=name)
    for name in ("ttft", "gap"):
        if getattr(args, name) is not None and getattr(args, name) <= 0:
            raise UsageError(f"--{name} is more than 0 seconds", param=name)
    if args.requests < 0 or args.speculate < 0:
        raise UsageError("--requests and --speculate are at least 0")


def subject_of(model: str, *, integers: bool = False) -> Subject:
    """integers: activations of integer weights are integers, as here; devices multiply in bf16.

    Raises MissingFileError and ConfigError as loading does.
    """
    eaten = "auto" if integers else "bf16"
    if model.lower() in KNOWN:
        config = ModelConfig.from_mapping(KNOWN[model.lower()])
        plain = program_for(config)

        def lowered(weights: str | None, kv_dtype: CacheDType) -> Program:
            return lower(
                plain, kinds_of(plain, config, weights), None, "int" if integers else "bf16", kv_dtype=kv_dtype
            )

        return _subject(model.lower(), config, lowered)
    config = config_of(model)

    def loaded(weights: str | None, kv_dtype: CacheDType) -> Program:
        if weights is None:
            return load_program(model, activations=eaten, kv_dtype=kv_dtype)
        plain = program_for(config)
        return lower(plain, kinds_of(plain, config, weights), None, "int" if integers else "bf16", kv_dtype=kv_dtype)

    return _subject(model, config, loaded)


def _subject(name: str, config: ModelConfig, program: Callable[[str | None, CacheDType], Program]) -> Subject:
    kv_heads = 0 if config.latent is not None else config.num_kv_heads
    return Subject(name, program, kv_heads, config.num_layers, config.hidden_size, config.max_position)


def kinds_of(program: Program, config: ModelConfig, weights: str | None) -> dict[str, str]:
    """What each weight is held as: as asked, else as the configuration states. The head stays at 8 bits beside 4."""
    kinds = default_kinds(program)
    stated = {"mxfp4": "fp4", "fp8": "fp8"}.get(config.quantization or "")
    held = WEIGHTS[weights] if weights is not None else stated
    if held in (None, "bf16"):
        return kinds
    experts = {name for op in program.ops if is_expert(op) for name in op.weights}
    linear = {op.weights[0] for op in program.ops if op.kind in ("linear", "expert_linear")}
    for name in linear & set(kinds):
        if kinds[name] == "bf16" and (held != "fp4" or name in experts):
            kinds[name] = "i8" if held == "u4" and program.weights[name].shape[0] == config.vocab_size else str(held)
    return kinds


def parallel_of(args: argparse.Namespace, subject: Subject) -> Parallel:
    """--tp, --pp and --ep of --count devices; tp takes what is left. Raises UsageError for a product that differs."""
    pp, ep = args.pp or 1, args.ep or 1
    tp = args.tp or max(args.count // (pp * ep), 1)
    if tp * pp * ep != args.count:
        raise UsageError(f"tp {tp} x pp {pp} x ep {ep} is {tp * pp * ep} devices, and --count says {args.count}")
    return Parallel(tp, pp, 1, ep, subject.kv_heads, subject.layers, subject.hidden)


def _tried(
    args: argparse.Namespace, subject: Subject, parallel: Parallel, wish: Wish, made: Callable[..., Plan]
) -> Any:
    """Changes in the order in which people would try them."""
    if args.kv_dtype == "bf16":
        yield "keep the cache in 8 bits (--kv-dtype i8)", lambda: made(kv_dtype="i8")
    if args.weights in (None, "bf16", "q8"):
        yield "weights of 4 bits (--weights q4)", lambda: made(weights="q4")
    if args.weights in (None, "bf16"):
        yield "weights of 8 bits (--weights q8)", lambda: made(weights="q8")
    if wish.requests:
        yield f"{2 * wish.requests} requests at once", lambda: made(replace(wish, requests=2 * wish.requests))
    if args.machine != "this":
        more = replace(parallel, tp=2 * parallel.tp)
        yield f"twice the devices ({2 * args.count})", lambda: made(wish, more)


def show(found: Plan, name: str, helping: list[advice.Change]) -> None:
    memory, speed, wish = found.memory, found.speed, found.wish
    devices = found.parallel.devices
    what = f"{name} on {f'{devices} x ' if devices > 1 else ''}{found.machine.name}"
    rows = [
        ("memory", _size(memory.total)),
        ("the process", _size(memory.process)),
        *([("the tokenizer", _size(memory.tokenizer))] if memory.tokenizer else []),
        *((f"weights, {kind}", _size(size)) for kind, size in memory.weights.items()),
        (f"values of a step of {wish.batch_tokens:,} tokens", _size(memory.values)),
        ("left for caches", _size(memory.spare) if memory.spare > 0 else "nothing"),
        *(
            (f"a token, {group}{_window(memory.windows, group)}", f"{size:,.0f} B")
            for group, size in memory.per_token.items()
        ),
        *([("a request, whatever its length", _size(memory.per_request))] if memory.per_request else []),
        (f"requests of {speed.context:,} tokens that fit", f"{found.most_requests:,}"),
        (
            f"longest context of {max(wish.requests, 1)} request{'s' * (wish.requests > 1)}",
            f"{found.longest_context:,}",
        ),
    ]
    table(what + (", of one device" if devices > 1 else ""), ("memory", ""), rows)
    rows = [
        (f"a prompt of {wish.prompt:,} tokens", f"{found.prefill:.3f} s"),
        (f"a token, {found.batch} at once after {speed.context:,}", f"{speed.decode * 1e3:.2f} ms"),
        ("tokens a second, one request", f"{speed.token_rate:,.1f}"),
        ("tokens a second, all", f"{speed.total_rate:,.1f}"),
    ]
    table("", ("speed" + ("" if found.machine.measured else ", predicted from data sheets"), ""), rows)
    parts = [
        (part.name, str(part.count), f"{part.seconds * 1e3:.3f} ms", f"{part.seconds / speed.decode:.0%}", part.bound)
        for part in speed.parts[:6]
    ]
    table("", ("a step spends", "n", "time", "share", "bound by"), parts)
    out = console()
    for line in advice.why(found):
        out.print(line)
    near = [] if found.met else advice.nearest(found)
    if near:
        out.print(f"Nearest that is possible: {'; or '.join(near)}.")
    for change in helping[:3]:
        out.print(f"- {change.what}: {change.gain}")
    if devices > 1:
        out.print("Several devices are arithmetic here: Octavo runs on one machine.")


def document(found: Plan, name: str, helping: list[advice.Change]) -> dict[str, Any]:
    memory, speed = found.memory, found.speed
    return {
        "model": name,
        "machine": found.machine.name,
        "predicted": not found.machine.measured,
        "devices": found.parallel.devices,
        "memory": {
            "total": memory.total,
            "process": memory.process,
            "tokenizer": memory.tokenizer,
            "weights": dict(memory.weights),
            "values": memory.values,
            "spare": memory.spare,
            "per_token": dict(memory.per_token),
            "per_request": memory.per_request,
            "requests": found.most_requests,
            "longest_context": found.longest_context,
        },
        "fits": found.fits,
        "ttft_met": found.ttft_met,
        "gap_met": found.gap_met,
        "prefill_s": found.prefill,
        "decode_s": speed.decode,
        "batch": found.batch,
        "context": speed.context,
        "tok_s": speed.total_rate,
        "parts": [
            {"name": p.name, "count": p.count, "seconds": p.seconds, "least_s": p.least, "bound": p.bound}
            for p in speed.parts
        ],
        "curve": [{"batch": b, "context": c, "seconds": s} for (b, c), s in found.curve().items()],
        "why": advice.why(found),
        "nearest": [] if found.met else advice.nearest(found),
        "changes": [{"what": c.what, "gain": c.gain, "better": c.better} for c in helping],
    }


def write(path: Path, text: str, flag: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from None


def _window(windows: Mapping[str, int], group: str) -> str:
    return f" (the last {windows[group]:,})" if group in windows else ""


def _size(amount: float) -> str:
    return f"{amount / 1e9:,.2f} GB" if amount >= 1e8 else f"{amount / 1e6:,.1f} MB"
