"""What quantized files of one model lose: KL, top-1 agreement and perplexity against the model that they were made of.

    python bench/roundtrip.py BASE FILE... --keep FOLDER [--tokens N] [--activations KIND]

BASE runs in float32 on the reference executor, once; each FILE (GGUF, or a folder) on the native one. The texts are
those of bench/fidelity.py but the first, which calibrates `octavo quantize`; --tokens of each are scored. Prints a row
of a table for each file: docs/quantization.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fidelity import texts

from octavo.config import EngineConfig
from octavo.engine.fidelity import Scorer, WindowScore, score, summarize, windows
from octavo.engine.vocabulary import load_tokenizer
from octavo.types import digest

CONTEXT = 512


class Recorded:
    """The base's logits, kept in a folder as they come, for every file after the first and for later runs."""

    def __init__(self, config: EngineConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._base: Scorer | None = None

    def logits(self, ids: Sequence[int], context: int) -> Iterator[Any]:
        begin = self._folder / f"{digest(*ids).hex()[:16]}"
        if not (last := begin.with_suffix(".end")).exists():
            self._base = self._base or Scorer(self._config, CONTEXT, quiet)
            for number, each in enumerate(self._base.logits(ids, context)):
                np.save(f"{begin}.{number}.npy", each)
            last.touch()
        for number in range(len(list(self._folder.glob(f"{begin.name}.*.npy")))):
            yield np.load(f"{begin}.{number}.npy")


def quiet(done: int, total: int) -> None:
    """No bar."""


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.glob("*.safetensors")))


def main() -> None:
    parser = argparse.ArgumentParser(description="what quantized files lose")
    parser.add_argument("base")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=2048, help="scored, of each text")
    parser.add_argument("--activations", default="auto")
    parser.add_argument("--keep", type=Path, required=True, help="a folder for the base's logits, kept between runs")
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.base)
    with tempfile.TemporaryDirectory() as name:
        cut = []
        for title, path in list(texts(Path(name)))[1:]:
            ids = tokenizer.encode(path.read_text(encoding="utf-8"), add_special=True)
            cut += windows(ids, CONTEXT, args.tokens)
            print(f"{title}: {len(windows(ids, CONTEXT, args.tokens)) * CONTEXT} tokens", flush=True)
    exact = EngineConfig(model=args.base, executor="reference", dtype="float32")
    args.keep.mkdir(parents=True, exist_ok=True)
    base: Any = Recorded(exact, args.keep)
    print("| file | MB | mean KL (bound) | top-1 | perplexity | of the model |\n|---|---|---|---|---|---|")
    for path in args.files:
        one = Scorer(EngineConfig(model=str(path), activations=args.activations), CONTEXT, quiet)
        scores: list[WindowScore] = score(one, base, cut, CONTEXT, quiet)
        one.close()
        r = summarize(scores)
        print(
            f"| {path.name} | {size(path) / 1e6:.1f} | {r.kl:.4f} ({r.kl_bound:.4f}) | {r.top1:.2%} "
            f"| {r.perplexity:.3f} | {r.other_perplexity:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
