"""Samples of a comparison and what is shown of them: ratios pair by pair, a table, a page, a bar plot."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path

ROW_TITLES = {
    "prefill-512": "prefill of 512 tokens",
    "prefill-32x128": "prefill of 32 prompts of 128",
    "decode-1": "decode, batch 1, context 128",
    "decode-8": "decode, batch 8, context 128",
    "decode-32": "decode, batch 32, context 128",
    "decode-32-at-2k": "decode, batch 32, context 2,016",
}
OURS = "octavo"
Rows = dict[str, dict[str, list[float | None]]]  # row -> "engine type" -> samples


@dataclass
class Results:
    """rates: model -> bits -> row -> "engine type" -> tokens a second, one a repeat; null where an engine failed.

    model: the one being measured; the page shows all that have rates.
    """

    model: str = ""
    threads: int = 0
    date: str = ""
    machine: dict[str, str] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    rates: dict[str, dict[str, Rows]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def dump(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            print(f"note: {text}", flush=True)

    def add(self, model: str, bits: str, row: str, rates: dict[str, float]) -> None:
        """One repeat. Samples at one place of their lists are neighbours in time."""
        lists = self.rates.setdefault(model, {}).setdefault(bits, {}).setdefault(row, {})
        length = max((len(samples) for samples in lists.values()), default=0)
        for name in lists.keys() | rates.keys():
            samples = lists.setdefault(name, [None] * length)
            samples.append(round(rates[name], 1) if name in rates else None)


def median(samples: list[float | None]) -> float:
    return statistics.median([rate for rate in samples if rate is not None] or [0.0])


def against_best(lists: dict[str, list[float | None]], ours: str) -> tuple[str, list[float]] | None:
    """The peer with the highest median, and our ratio to it in every repeat that has both."""
    peers = {name: samples for name, samples in lists.items() if not name.startswith(OURS) and median(samples)}
    if not peers or ours not in lists:
        return None
    best = max(peers, key=lambda name: median(peers[name]))
    pairs = zip(lists[ours], peers[best], strict=True)
    ratios = [mine / theirs for mine, theirs in pairs if mine is not None and theirs]
    return (best, ratios) if ratios else None


def _cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """A header and the rows of one table: medians with their range, then the ratios."""
    names = sorted(
        {name for lists in rows.values() for name in lists}, key=lambda name: (not name.startswith(OURS), name)
    )
    header = ["tok/s", *names, "against the best peer"]
    body = []
    for row in (row for row in ROW_TITLES if row in rows):
        cells = [ROW_TITLES[row]]
        for name in names:
            samples = [rate for rate in rows[row].get(name, []) if rate is not None]
            spread = f" ({min(samples):,.0f}-{max(samples):,.0f})" if samples else ""
            cells.append(f"{median(list(samples)):,.0f}{spread}" if samples else "-")
        verdicts = []
        for ours in (name for name in names if name.startswith(OURS)):
            found = against_best(rows[row], ours)
            if found is not None:
                best, ratios = found
                span = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}, {len(ratios)} rounds)"
                verdicts.append(f"{ours.removeprefix(OURS).strip(' -')} {span} of {best}")
        cells.append("; ".join(verdicts) or "-")
        body.append(cells)
    return header, body


def _tables(results: Results) -> list[tuple[str, Rows]]:
    return [(f"{model}, {bits}", rows) for model, kinds in results.rates.items() for bits, rows in kinds.items()]


def table(results: Results) -> str:
    """For a terminal."""
    lines = []
    for title, rows in _tables(results):
        header, body = _cells(rows)
        widths = [max(len(line[i]) for line in (header, *body)) for i in range(len(header))]
        lines.append(f"\n{title}")
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (header, *body)
        ]
    return "\n".join(lines)


PAGE = """# Octavo beside its peers

Written by `python bench/compare.py --write` (`make compare`); do not edit. Samples: `benchmarks.json`.

Models: {models}. Threads: {threads}. Date: {date}. {machine}. Versions: {engines}.

![tokens a second of every engine, row by row](benchmarks.svg)

How it is measured. Engines of the same bits a weight take turns, row after row and repeat after repeat, each alone on
the machine: the others have ended or are stopped. Figures are medians over the repeats (in brackets: least and most);
a ratio is the median of the ratios of neighbours in time, to the peer with the best median in that row. Prompts are
random token ids, all different, as many and as long for every engine, and every request generates exactly the tokens
asked for. A measurement waits for other work on the machine to end, and is taken again when it was disturbed.
*Prefill* counts prompt tokens until every request has its first token; *decode* counts tokens while all requests
decode.

What is compared. Octavo: `octavo bench`, the whole engine with scheduler and sampling. OpenVINO GenAI, vLLM and
transformers: their Python interfaces, whole engines too. llama.cpp: its own `llama-batched-bench`, which neither
schedules nor samples, with a cache of its own for every sequence (its fastest setting here); at context 2,016 it
computes one prompt and copies its cache for all 32 sequences, so only its decode rate is taken there. Every peer runs
with its own default numerics: OpenVINO and llama.cpp round activations to 8 bits in groups where Octavo does not
(`fidelity.md`). `octavo-i8g32` is Octavo with `--activations i8g32`, which rounds as they do: an option, since it
misses the bars of fidelity that the defaults keep.

SmolLM2's types that are not the published file were written by llama.cpp's quantize tool. Its Q4_K_M falls back to
Q5_0, Q5_1 and Q8_0 for tensors whose width is no multiple of 256. qwen3-0.6b, llama-3.2-1b and llama-3.1-8b are random
weights in those models' shapes (`bench/shapes.py`), the head as wide as theirs. OpenVINO's reader knows no bfloat16
files: in the 16-bit rows it reads float16.
"""


def markdown(results: Results) -> str:
    facts = ", ".join(f"{key}: {value}" for key, value in results.machine.items())
    engines = ", ".join(f"{name} {version}" for name, version in results.engines.items())
    lines = [
        PAGE.format(
            models=", ".join(results.rates),
            threads=results.threads,
            date=results.date,
            machine=facts,
            engines=engines,
        )
    ]
    for title, rows in _tables(results):
        header, body = _cells(rows)
        lines.append(f"## {title}\n")
        lines += ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *body)]
        lines.append("")
    if results.notes:
        lines += ["## Notes\n", *(f"- {note}" for note in results.notes), ""]
    return "\n".join(lines)


COLORS = {
    OURS: "#c2410c",
    "octavo-i8g32": "#fb923c",
    "llama.cpp": "#2563eb",
    "openvino": "#7c3aed",
    "vllm": "#0f766e",
    "transformers": "#64748b",
}
WIDTH, BAR, LABEL, VALUE = 860, 16, 190, 70  # pixels


def plot(results: Results) -> str:
    """An SVG: for every model, number of bits and row a group of bars, longest = fastest of the group."""
    parts: list[str] = []
    y = 8
    for title, rows in _tables(results):
        for row in (row for row in ROW_TITLES if row in rows):
            y += 20
            parts.append(f'<text x="4" y="{y}" font-weight="bold">{escape(f"{title}: {ROW_TITLES[row]}")}</text>')
            top = max(median(samples) for samples in rows[row].values()) or 1.0
            for name, samples in sorted(rows[row].items(), key=lambda item: -median(item[1])):
                rate = median(samples)
                if not rate:
                    continue
                y += BAR + 2
                length = max(1.0, (WIDTH - LABEL - VALUE) * rate / top)
                color = COLORS.get(name.split()[0], "#94a3b8")
                parts.append(f'<text x="{LABEL - 6}" y="{y}" text-anchor="end">{escape(name)}</text>')
                parts.append(f'<rect x="{LABEL}" y="{y - 12}" width="{length:.0f}" height="{BAR - 2}" fill="{color}"/>')
                parts.append(f'<text x="{LABEL + length + 5:.0f}" y="{y}">{rate:,.0f}</text>')
    style = 'font-family="sans-serif" font-size="12" fill="#334155"'
    size = f'width="{WIDTH}" height="{y + 12}" viewBox="0 0 {WIDTH} {y + 12}"'
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{background}\n' + "\n".join(parts) + "\n</svg>\n"
