"""`octavo simulate MODEL`: a service in virtual time, with the scheduler and the cache ledger that serve.

What comes: a trace, or arrivals and lengths drawn from distributions; open loop, or clients that wait for their answer.
Who answers: replicas of one machine behind a router, or prefill and decode on machines of their own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from octavo.cli import simulate_report
from octavo.cli.machines import is_host, machine_of
from octavo.cli.plan import Subject, add_machine, parallel_of, subject_of, write
from octavo.cli.screen import console, table
from octavo.errors import ConfigError, UsageError
from octavo.sim.arrival import Arrival
from octavo.sim.chrome import ChromeTrace
from octavo.sim.machine import MachineModel
from octavo.sim.parallel import Parallel
from octavo.sim.planning import memory_of
from octavo.sim.replica import Drafts, Replica, Sizes
from octavo.sim.router import RULES, router
from octavo.sim.service import Fault, History, Journey, Service, Split
from octavo.sim.steps import StepModel
from octavo.sim.summary import PERCENTILES, Slo, Spread, Summary, capacity, summarize
from octavo.workload.arrivals import KINDS
from octavo.workload.job import Job
from octavo.workload.lengths import parse_lengths
from octavo.workload.synthetic import Synthetic
from octavo.workload.trace import read_trace

BLOCK, DEVICE_BLOCK = 16, 64  # tokens of a block: as the engine has it here; of devices, which would take larger ones
SHARE = 0.9  # of what is left, for caches


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="as for `octavo plan`")
    add_machine(parser)
    group = parser.add_argument_group("what comes")
    group.add_argument("--trace", metavar="FILE", help="Azure CSV or Mooncake JSON lines")
    group.add_argument("--time-scale", type=float, default=1.0, metavar="F", help="the trace F times as fast")
    group.add_argument("--rate", type=float, metavar="R", help="requests a second (default: 1)")
    group.add_argument("--arrivals", choices=KINDS, default="poisson", help="default: poisson")
    group.add_argument("--burstiness", type=float, default=1.0, metavar="F", help="of gamma arrivals (default: 1)")
    group.add_argument("--clients", type=int, metavar="N", help="closed loop: each sends when it has its answer")
    group.add_argument("--input", default="lognormal:512:0.8", metavar="L", help="tokens of prompts: 512, 100-900, ...")
    group.add_argument("--output", default="lognormal:128:0.6", metavar="L", help="tokens of answers")
    group.add_argument("--prefix", type=int, default=0, metavar="N", help="tokens that prompts of a group share")
    group.add_argument("--prefix-groups", type=int, default=1, metavar="N", help="default: 1")
    group.add_argument("--duration", type=float, metavar="S", help="of what comes (default: 300, a trace whole)")
    group.add_argument("--seed", type=int, default=0, metavar="N")
    group = parser.add_argument_group("who answers")
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="default: 1")
    group.add_argument("--router", choices=RULES, default="prefix", help="default: prefix")
    group.add_argument("--prefill-replicas", type=int, default=0, metavar="N", help="that compute prompts alone")
    group.add_argument("--link", type=float, metavar="GBs", help="from prefill to decode (default: the machine's)")
    group.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="default: 256")
    group.add_argument("--batch-tokens", type=int, default=2048, metavar="N", help="tokens of a step (default: 2048)")
    group.add_argument("--block-tokens", type=int, metavar="N", help="default: 16 on this machine, 64 on devices")
    group.add_argument("--no-prefix-caching", action="store_true")
    group.add_argument("--drafts", type=int, default=0, metavar="N", help="a step, by a drafter")
    group.add_argument("--acceptance", type=float, default=0.7, metavar="P", help="of each draft (default: 0.7)")
    group.add_argument("--slow", metavar="AT:REPLICA:FACTOR:SECONDS", action="append", default=[], help="a fault")
    group = parser.add_argument_group("what is asked")
    group.add_argument("--ttft", type=float, metavar="S", help="seconds that the first token may take")
    group.add_argument("--gap", type=float, metavar="S", help="seconds a token, the mean of a request")
    group.add_argument("--capacity", action="store_true", help="search the highest rate within --ttft and --gap")
    group.add_argument("--share", type=float, default=0.9, metavar="P", help="of requests within them (default: 0.9)")
    group.add_argument("--json", action="store_true", help="last line: one JSON object")
    group.add_argument("--html", metavar="FILE", help="write a report with plots")
    group.add_argument("--chrome", metavar="FILE", help="write a trace of virtual time for chrome://tracing")


@dataclass(frozen=True, slots=True)
class House:
    """What every run of one command has in common."""

    args: argparse.Namespace
    subject: Subject
    machine: MachineModel
    parallel: Parallel
    steps: StepModel
    sizes: Sizes

    def run(self, jobs: Iterator[Job], seed: int, chrome: ChromeTrace | None = None) -> tuple[History, list[Replica]]:
        args = self.args
        drafts = Drafts(args.drafts, args.acceptance) if args.drafts else None

        def made(first: int, count: int, **more: Any) -> list[Replica]:
            return [Replica(first + n, self.sizes, self.steps.seconds, seed=seed, **more) for n in range(count)]

        fronts = made(0, args.prefill_replicas)
        decoders = made(len(fronts), args.replicas, drafts=drafts, imports=bool(fronts))
        per_token = sum(group.bytes_per_token for group in self.sizes.groups)
        link = args.link * 1e9 if args.link else self.machine.link or self.machine.bandwidth
        runs = self.sizes.num_blocks * self.sizes.block_tokens // 512
        service = Service(
            decoders,
            router(args.router, runs),
            split=Split(fronts, per_token, link) if fronts else None,
            follow=_follow(jobs, args) if args.clients else None,
            trace=chrome.step if chrome is not None else None,
        )
        arrivals = (Arrival(job, number) for number, job in enumerate(jobs))
        first = islice(arrivals, args.clients) if args.clients else arrivals
        until = _duration(args) if _duration(args) is not None else float("inf")
        history = service.run(first, faults=_faults(args), until=float(until or 0))
        return history, [*fronts, *decoders]


def run(args: argparse.Namespace) -> int:
    _check(args)
    machine, notes = machine_of(args.machine)
    house = _house(args, machine)
    for note in notes:
        console(stderr=True).print(f"note: {note}")
    slo = Slo(args.ttft, args.gap)
    if args.capacity:
        return _capacity(house, slo)
    begun = time.monotonic()
    chrome = ChromeTrace() if args.chrome else None
    history, replicas = house.run(_jobs(args, args.rate or 1.0, args.seed), args.seed, chrome)
    taken = time.monotonic() - begun
    found = summarize(history, replicas, slo)
    title = f"{house.subject.name}, {_who(args, machine)}"
    show(found, title, taken)
    if chrome is not None:
        write(Path(args.chrome), chrome.document(), "--chrome")
    if args.html:
        write(Path(args.html), simulate_report.render(history, found, title, slo), "--html")
    if args.json:
        print(json.dumps({"model": args.model, "machine": machine.name, "seed": args.seed, **asdict(found)}))
    return 0


def _house(args: argparse.Namespace, machine: MachineModel) -> House:
    subject = subject_of(args.model, integers=is_host(args.machine, machine))
    parallel = parallel_of(args, subject)
    program = subject.program(args.weights, args.kv_dtype)
    memory = memory_of(program, machine, parallel, args.batch_tokens, args.max_num_seqs)
    block = args.block_tokens or (BLOCK if is_host(args.machine, machine) else DEVICE_BLOCK)
    each = memory.of_request(block, block) - memory.per_request
    spare = memory.spare * SHARE - memory.per_request * args.max_num_seqs
    blocks = int(spare / each) if each else args.max_num_seqs
    if blocks < 1:
        raise ConfigError(
            f"{subject.name} does not fit: {memory.fixed / 1e9:.1f} GB are needed on each device before any cache, of "
            f"{memory.total / 1e9:.1f} GB: see `octavo plan`"
        )
    sizes = Sizes(
        groups=program.groups,
        num_blocks=min(blocks, args.max_num_seqs * -(-subject.max_context // block)),
        block_tokens=block,
        max_model_len=subject.max_context,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.batch_tokens,
        enable_prefix_caching=not args.no_prefix_caching,
    )
    return House(args, subject, machine, parallel, StepModel(program, machine, parallel), sizes)


def _check(args: argparse.Namespace) -> None:
    for name in ("replicas", "batch_tokens", "max_num_seqs", "prefix_groups", "block_tokens"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} is at least 1", param=name)
    for name in ("prefill_replicas", "prefix", "drafts"):
        if getattr(args, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} is at least 0", param=name)
    for name in ("acceptance", "share"):
        if not 0 <= getattr(args, name) <= 1:
            raise UsageError(f"--{name} is a share, from 0 to 1", param=name)
    if args.trace and (args.rate is not None or args.clients):
        raise UsageError("--trace says when requests come: not together with --rate and --clients", param="trace")
    if args.clients is not None and (args.clients < 1 or args.rate is not None):
        raise UsageError("--clients is at least 1, and not together with --rate", param="clients")
    if args.capacity and args.ttft is None and args.gap is None:
        raise UsageError("--capacity needs --ttft or --gap", param="capacity")
    if args.capacity and (args.trace or args.clients):
        raise UsageError("--capacity draws its own arrivals: not together with --trace and --clients", param="capacity")
    if args.time_scale <= 0 or (args.duration is not None and args.duration <= 0):
        raise UsageError("--time-scale and --duration are more than 0")


def _duration(args: argparse.Namespace) -> float | None:
    if args.duration is None and not args.trace:
        return 300.0
    return None if args.duration is None else float(args.duration)


def _jobs(args: argparse.Namespace, rate: float, seed: int) -> Iterator[Job]:
    if args.trace:
        return iter(read_trace(args.trace, time_scale=args.time_scale))
    work = Synthetic(
        parse_lengths(args.input),
        parse_lengths(args.output),
        rate=None if args.clients else rate,
        kind=args.arrivals,
        burstiness=args.burstiness,
        prefix_tokens=args.prefix,
        prefix_groups=args.prefix_groups,
        seed=seed,
    )
    return work.jobs()


def _follow(jobs: Iterator[Job], args: argparse.Namespace) -> Callable[[Journey, float], Arrival | None]:
    until = _duration(args) or 0.0
    sent = args.clients

    def follow(journey: Journey, now: float) -> Arrival | None:
        nonlocal sent
        if now > until:
            return None
        sent += 1
        job = next(jobs)
        return Arrival(Job(now, job.input_tokens, job.output_tokens, job.shared), sent)

    return follow


def _faults(args: argparse.Namespace) -> list[Fault]:
    found = []
    for text in args.slow:
        try:
            at, replica, factor, seconds = text.split(":")
            fault = Fault(float(at), int(replica), float(factor), float(seconds))
        except ValueError:
            raise UsageError(f"--slow is AT:REPLICA:FACTOR:SECONDS, not {text!r}", param="slow") from None
        if not 0 <= fault.replica < args.replicas + args.prefill_replicas or fault.slowdown <= 0:
            raise UsageError(f"--slow {text}: no such replica, or a factor of 0", param="slow")
        found.append(fault)
    return found


def _capacity(house: House, slo: Slo) -> int:
    args = house.args

    def kept(rate: float, seed: int) -> float:
        history, replicas = house.run(_jobs(args, rate, args.seed + seed), args.seed + seed)
        return summarize(history, replicas, slo).kept

    found = capacity(kept, args.share, 3, first=args.rate or 0.5)
    table(
        f"{house.subject.name}, {_who(args, house.machine)}",
        ("rate", "within the limits"),
        [(f"{rate:.3f}", f"{share:.1%}") for rate, share in found.tried],
    )
    wanted = " and ".join(
        f"{name} <= {limit:g} s" for name, limit in (("ttft", slo.ttft), ("gap", slo.gap)) if limit is not None
    )
    console().print(
        f"{found.rate:.2f} requests a second (+- {found.spread:.2f} by seed) keep {wanted} for {args.share:.0%} of them"
    )
    if args.json:
        print(json.dumps({"model": args.model, "machine": house.machine.name, **asdict(found)}))
    return 0


def _who(args: argparse.Namespace, machine: MachineModel) -> str:
    each = machine.name if args.count == 1 else f"{args.count} x {machine.name}"
    if args.prefill_replicas:
        return f"{args.prefill_replicas} prefill and {args.replicas} decode replicas of {each}"
    return f"{args.replicas} replica{'s' * (args.replicas > 1)} of {each}, router {args.router}"


def show(found: Summary, title: str, taken: float) -> None:
    heads = ("", "mean", *(f"p{p}" for p in PERCENTILES), "most")
    rows = [
        ("first token", *_spread(found.ttft)),
        ("token to token", *_spread(found.gap)),
        ("the same, by request", *_spread(found.mean_gap)),
        ("whole answer", *_spread(found.whole)),
    ]
    table(title, heads, rows)
    ended = ", ".join(f"{count:,} {reason}" for reason, count in found.ended.items())
    rows = [
        ("virtual time", f"{found.seconds:,.1f} s, computed in {taken:.1f} s"),
        ("requests", f"{found.requests:,} ({ended})"),
        ("tokens", f"{found.prompt_tokens:,} in, {found.output_tokens:,} out"),
        ("tokens a second", f"{found.output_tokens / max(found.seconds, 1e-9):,.1f} out"),
        ("within the limits", f"{found.kept:.1%}, {found.goodput:.2f} requests a second"),
        ("replicas busy", f"{found.busy:.1%}"),
        ("prompt tokens found in the cache", f"{found.cached:.1%}"),
        ("preemptions", f"{found.preemptions:,}"),
        ("steps", f"{found.steps:,}"),
        ("most that waited", f"{found.most_waiting:,}"),
    ]
    table("", ("service", ""), rows)


def _spread(spread: Spread) -> tuple[str, ...]:
    return tuple(_time(value) for value in (spread.mean, *spread.at, spread.most))


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
