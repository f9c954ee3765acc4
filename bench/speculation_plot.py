"""Drafters beside plain decoding as a picture, of what `octavo bench FILE --speculate KIND,... --json` said.

    python bench/speculation_plot.py OUT.svg TITLE=RESULT ...

A RESULT is a file whose last line is such an object; each is a chart of its own. A mark is the median of the ratios of
a text, with a line down to the lower end of its interval.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from octavo.load.plot import COLOURS, Axis, Chart, linear, sheet


def chart(title: str, result: dict[str, Any]) -> Chart:
    lines = result["lines"]
    texts = list(dict.fromkeys(line["text"] for line in lines))
    kinds = list(dict.fromkeys(line["kind"] for line in lines))
    ticks = tuple((place + 0.5, text) for place, text in enumerate(texts))
    drawn = Chart(
        title,
        Axis("text, one request at a time", 0.0, float(len(texts)), ticks),
        linear("times plain decoding", [line["ratio"] for line in lines]),
    )
    drawn.bound(1.0, "")
    for number, kind in enumerate(kinds):
        named = kind
        for line in lines:
            if line["kind"] == kind:
                x = texts.index(line["text"]) + 0.5 + 0.12 * (number - (len(kinds) - 1) / 2)
                drawn.line([(x, line["low"]), (x, line["ratio"])], COLOURS[number])
                drawn.dots([(x, line["ratio"])], COLOURS[number], named, radius=4)
                named = ""
    return drawn


def main(out: str, *given: str) -> None:
    named = [each.split("=", 1) for each in given]
    results = [(title, json.loads(Path(path).read_text().splitlines()[-1])) for title, path in named]
    Path(out).write_text(sheet([chart(title, result) for title, result in results]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
