"""`make page`: the page of two servers driven in headless Chromium: a real model, whose screenshots go to docs/images,
and a scripted one that thinks, calls tools and wants a key.

    python bench/page/run.py [MODEL]

Needs node, Debian's chromium (or CHROMIUM) and playwright-core under build/page (or PLAYWRIGHT).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEY = "a key of the page"


def main(model: str) -> int:
    shots = ROOT / "docs" / "images"
    shots.mkdir(exist_ok=True)
    serve = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", "0", "--log-format", "off"]
    scripted = [sys.executable, str(ROOT / "bench" / "clients" / "server.py"), "--key", KEY]
    with running(serve) as url, running(scripted) as told:
        drive = ["node", str(Path(__file__).with_name("drive.mjs")), url, str(shots), told, KEY]
        return subprocess.run(drive, env={"PLAYWRIGHT": str(ROOT / "build" / "page"), **os.environ}).returncode


@contextmanager
def running(command: list[str]) -> Iterator[str]:
    """The address of a server while it runs."""
    path = os.pathsep.join(
        filter(None, (str(ROOT / "src"), str(ROOT / "tests" / "server"), os.environ.get("PYTHONPATH")))
    )
    environ = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as server:
        try:
            yield server.stdout.readline().split()[-1].removesuffix("v1")
        finally:
            server.terminate()


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or ["smollm2:135m"])))
