"""JSON schemas with instances that are valid and not: what the masks accept, what is refused, and how long it takes.

    PYTHONPATH=src python bench/schemas.py FILE.jsonl [--model smollm2:135m]

A line: {"name", "schema", "tests": [{"data", "valid"}]}. An instance is accepted when every token of its JSON text may
come, and then the end. A schema is right when all its instances are judged right, refused when it cannot be compiled.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections import Counter
from pathlib import Path

from octavo.engine.vocabulary import load_tokenizer
from octavo.errors import OctavoError
from octavo.grammar.structures import Structures
from octavo.request import Structure
from octavo.text.tokenizer import Tokenizer


def accepts(structures: Structures, structure: Structure, ids: list[int], seconds: list[float]) -> bool:
    matcher = structures.matcher(structure)
    for token in ids:
        begun = time.perf_counter()
        mask = matcher.mask()
        seconds.append(time.perf_counter() - begun)
        if not mask[token >> 5] >> (token & 31) & 1:
            return False
        matcher.accept([token])
    return True


def judge(tokenizer: Tokenizer, lines: list[str]) -> None:
    structures = Structures(lambda: tokenizer)
    structures.check(Structure("regex", "a"))  # the vocabulary's tables
    outcomes, reasons = Counter[str](), Counter[str]()
    masks, compiles = [], []
    for line in lines:
        case = json.loads(line)
        structure = Structure("json_schema", json.dumps(case["schema"]))
        begun = time.perf_counter()
        try:
            structures.check(structure)
        except OctavoError as error:
            outcomes["refused"] += 1
            reasons[re.sub(r"'[^']*'", "...", str(error))[:80]] += 1
            continue
        compiles.append(time.perf_counter() - begun)
        wrong = ""
        for test in case["tests"]:
            ids = [*tokenizer.encode(json.dumps(test["data"], ensure_ascii=False)), tokenizer.eos_ids[0]]
            if accepts(structures, structure, ids, masks) != test["valid"]:
                wrong = "refuses a valid instance" if test["valid"] else "accepts an invalid instance"
        outcomes[wrong or "right"] += 1
    print(dict(outcomes))
    for name, scale, unit, values in (("mask", 1e6, "µs", masks), ("compile", 1e3, "ms", compiles)):
        cuts = statistics.quantiles(values, n=100)
        print(f"{name}: median {cuts[49] * scale:.1f} {unit}, 99 % {cuts[98] * scale:.1f} {unit}")
    for reason, count in reasons.most_common():
        print(f"{count:4} {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="smollm2:135m")
    asked = parser.parse_args()
    judge(load_tokenizer(asked.model), asked.file.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    main()
