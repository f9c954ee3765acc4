"""`octavo load URL`: puts an OpenAI endpoint under load and says how it answers; `--compare`: two runs side by side."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from octavo import __version__
from octavo.cli.flags import number, whole
from octavo.cli.screen import console, table
from octavo.errors import MissingFileError, ResourceError, UsageError
from octavo.load.driver import Driver, Plan, Progress
from octavo.load.http import Address, Client
from octavo.load.prose import Prose
from octavo.load.record import Record
from octavo.load.report import write_report
from octavo.load.run import Run
from octavo.load.slo import BOUNDS, parse_slo
from octavo.load.summary import Distribution
from octavo.load.tables import comparison, comparison_header, differences, facts, milliseconds, times_header, times_rows
from octavo.load.target import Target, probe, served_model
from octavo.workload.arrivals import KINDS
from octavo.workload.job import Job
from octavo.workload.lengths import HOW, parse_lengths
from octavo.workload.synthetic import Synthetic
from octavo.workload.trace import read_trace

SECONDS = 30.0  # of a run that nothing else bounds
PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
PROBE = 2**24 - 1  # numbers its prompt, which no job's number reaches
T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument(
        "url", nargs="?", help="of the server, e.g. http://127.0.0.1:8737; /v1 is added where no path is"
    )
    parser.add_argument(
        "--compare", nargs=2, metavar=("A.json", "B.json"), help="two runs that --json wrote, side by side"
    )
    _workload(parser.add_argument_group("workload"))
    request = parser.add_argument_group("requests")
    request.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    request.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="default: chat")
    request.add_argument("--api-key-file", metavar="FILE", help="its first line is the key (or OCTAVO_API_KEY)")
    request.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="outputs as long as asked for; a field that not every server knows (default: on)",
    )
    request.add_argument("--body", metavar="JSON", help="further fields of every request, e.g. '{\"temperature\": 0}'")
    request.add_argument(
        "--timeout", type=_of(number), default=600.0, metavar="SECONDS", help="of a request (default: 600)"
    )
    request.add_argument(
        "--grace",
        type=_of(number),
        default=60.0,
        metavar="SECONDS",
        help="wait for answers after the last request (default: 60)",
    )
    result = parser.add_argument_group("results")
    result.add_argument(
        "--slo",
        default="",
        metavar="NAME=TIME,...",
        help="bounds of a good answer: " + "; ".join(f"{name}: {what}" for name, what in BOUNDS.items()),
    )
    result.add_argument("--json", metavar="FILE", help="everything, every request")
    result.add_argument("--csv", metavar="FILE", help="a line a request")
    result.add_argument(
        "--report", metavar="FILE", help="tables and charts in one page (.html), or the charts alone (.svg)"
    )


def _workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--rate", type=_of(number), metavar="R", help="requests per second, sent when due (open loop)")
    group.add_argument(
        "--concurrency", type=_of(whole), metavar="N", help="users of whom each waits for its answer (closed loop)"
    )
    group.add_argument(
        "--trace", metavar="FILE", help="recorded arrivals and lengths: Azure's CSV, Mooncake's JSON lines"
    )
    group.add_argument("--arrivals", choices=KINDS, default="poisson", help="of --rate (default: poisson)")
    group.add_argument(
        "--burstiness",
        type=_of(number),
        default=1.0,
        metavar="X",
        help="of gamma arrivals: squared variation of the gaps (default: 1)",
    )
    group.add_argument("--requests", type=_of(whole), metavar="N", help="at most so many")
    group.add_argument(
        "--duration",
        type=_of(number),
        metavar="SECONDS",
        help="sending ends (default: 30 without --requests or --trace)",
    )
    group.add_argument("--input-tokens", default="256", metavar="LENGTHS", help=f"{HOW} (default: 256)")
    group.add_argument("--output-tokens", default="64", metavar="LENGTHS", help="likewise (default: 64)")
    group.add_argument(
        "--prefix-tokens",
        type=_of(whole),
        default=0,
        metavar="N",
        help="first tokens of every input that its group shares",
    )
    group.add_argument(
        "--prefix-groups", type=_of(whole), default=1, metavar="N", help="groups, drawn at random (default: 1)"
    )
    group.add_argument(
        "--time-scale", type=_of(number), default=1.0, metavar="X", help="a trace X times as fast (default: 1)"
    )
    group.add_argument(
        "--length-scale",
        type=_of(number),
        default=1.0,
        metavar="X",
        help="a trace's inputs and outputs X times as long (default: 1)",
    )
    group.add_argument(
        "--seed", type=_of(whole), default=0, metavar="N", help="equal seeds, equal arrivals and lengths (default: 0)"
    )
    group.add_argument(
        "--salt", metavar="TEXT", help="of the prompts' words; new for each run, so that no earlier run warms a cache"
    )
    group.add_argument(
        "--warmup", type=_of(whole), default=1, metavar="N", help="requests before the run, not counted (default: 1)"
    )


def run(args: argparse.Namespace) -> int:
    if args.compare:
        return _compare(args)
    if not args.url:
        raise UsageError("octavo load: which URL? For example http://127.0.0.1:8737", param="url")
    _check(args)
    jobs, plan, slo = _jobs(args), _plan(args), parse_slo(args.slo)
    settings = _settings(args)
    client = Client(Address.of(args.url), _headers(args))
    started = datetime.now(UTC)
    model, records = asyncio.run(_driven(args, client, Prose(settings["salt"]), jobs, plan))
    found = Run(
        version=__version__,
        started=started.isoformat(timespec="seconds"),
        url=client.address.url,
        model=model,
        settings=settings,
        slo=slo,
        records=records,
    )
    table("", ("load", ""), facts(found))
    table("", times_header(), times_rows(found.summary))
    if args.json:
        found.write_json(args.json)
    if args.csv:
        found.write_csv(args.csv)
    if args.report:
        write_report(args.report, found)
    if not found.summary.succeeded:
        raise ResourceError("no request was answered", code="load_failed")
    return 0


# ---- what is asked for
def _of(parse: Callable[[str], T]) -> Callable[[str], T]:
    """For argparse, which prints what an ArgumentTypeError says."""

    def read(text: str) -> T:
        try:
            value = parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not 0 <= value < 1e12:  # type: ignore[operator]
            raise argparse.ArgumentTypeError(f"must be at least 0, not {text}")
        return value

    return read


def _check(args: argparse.Namespace) -> None:
    given = [f"--{name}" for name in ("rate", "concurrency", "trace") if getattr(args, name) is not None]
    if len(given) != 1:
        told = "and ".join(f"{name} " for name in given)
        raise UsageError(
            f"octavo load: one of --rate, --concurrency and --trace{f', not {told.strip()}' if told else ''}"
        )
    if args.burstiness != 1.0 and args.arrivals != "gamma":
        raise UsageError("--burstiness is of --arrivals gamma", param="burstiness")
    for name in ("concurrency", "requests", "duration", "prefix_groups", "time_scale", "length_scale", "timeout"):
        if getattr(args, name) == 0:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0", param=name)
    for path in (args.json, args.csv, args.report):
        if path and not Path(path).absolute().parent.is_dir():
            raise MissingFileError(f"{path}: no such folder")
    if args.report and not args.report.endswith((".svg", ".html", ".htm")):
        raise UsageError(f"--report {args.report}: the name must end with .html or .svg", param="report")


def _jobs(args: argparse.Namespace) -> Iterable[Job]:
    if args.trace:
        return read_trace(args.trace, time_scale=args.time_scale, length_scale=args.length_scale)
    return Synthetic(
        input_tokens=parse_lengths(args.input_tokens),
        output_tokens=parse_lengths(args.output_tokens),
        rate=args.rate,
        kind=args.arrivals,
        burstiness=args.burstiness,
        prefix_tokens=args.prefix_tokens,
        prefix_groups=args.prefix_groups,
        seed=args.seed,
    ).jobs()


def _plan(args: argparse.Namespace) -> Plan:
    bounded = args.duration is not None or args.requests is not None or args.trace
    seconds = args.duration if bounded else SECONDS
    return Plan(args.concurrency, args.requests, seconds, args.timeout, args.grace)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    names = [
        *("rate", "concurrency", "trace", "arrivals", "burstiness", "requests", "duration", "input_tokens"),
        *("output_tokens", "prefix_tokens", "prefix_groups", "time_scale", "length_scale", "seed", "endpoint"),
        *("ignore_eos", "body", "timeout", "grace"),
    ]
    settings = {name: getattr(args, name) for name in names}
    return settings | {"salt": args.salt or secrets.token_hex(4)}


def _headers(args: argparse.Namespace) -> dict[str, str]:
    key = os.environ.get("OCTAVO_API_KEY", "").strip()
    if args.api_key_file:
        try:
            key = Path(args.api_key_file).read_text(encoding="utf-8").split("\n", 1)[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise MissingFileError(f"{args.api_key_file}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    if key and not (key.isascii() and key.isprintable()):
        raise UsageError("the API key is not printable ASCII", param="api_key_file")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _extra(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise UsageError(f"--body: not JSON: {error}", param="body") from None
    if not isinstance(value, dict):
        raise UsageError("--body: a JSON object is needed", param="body")
    return value


# ---- the run
async def _driven(
    args: argparse.Namespace, client: Client, prose: Prose, jobs: Iterable[Job], plan: Plan
) -> tuple[str, list[Record]]:
    try:
        model = args.model or await served_model(client)
        target = Target(client.address, model, args.endpoint, args.ignore_eos, _extra(args.body))
        for place in range(args.warmup):
            await probe(client, target, Job(0.0, 32, 4), PROBE - place, prose)
        driver = Driver(client, target, prose, plan)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, driver.stop)
        try:
            with _watching(plan) as watch:
                return model, await driver.run(jobs, watch)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
    finally:
        client.close()


@contextmanager
def _watching(plan: Plan) -> Iterator[Callable[[Progress], None]]:
    """One line on stderr: kept up to date on a terminal, else printed anew every 10 seconds."""
    if sys.stderr.isatty():
        with console(stderr=True).status("sending") as status:
            yield lambda progress: status.update(_line(progress))
        return
    told = 0.0

    def tell(progress: Progress) -> None:
        nonlocal told
        if progress.elapsed - told >= PLAIN_SECONDS:
            told = progress.elapsed
            print(_line(progress), file=sys.stderr, flush=True)

    yield tell


def _line(progress: Progress) -> str:
    ttfts = Distribution.of(progress.ttfts[-200:])
    first = f", first token p50 {milliseconds(ttfts.percentile(50))} ms" if ttfts else ""
    counts = f"{progress.sent:,} sent, {progress.open:,} open, {progress.failed:,} failed"
    return f"{progress.elapsed:.0f} s: {counts}, {progress.tokens:,} pieces of output{first}"


# ---- two runs
def _compare(args: argparse.Namespace) -> int:
    first, second = (Run.read(path) for path in args.compare)
    table("", comparison_header(), comparison(first, second))
    for line in differences(first, second):
        print(f"differs: {line}")
    if args.report:
        write_report(args.report, first, second)
    return 0
