"""`make page`: a server over a real model, and its page driven in headless Chromium; screenshots go to docs/images.

    python bench/page/run.py [MODEL]

Needs node, Debian's chromium (or CHROMIUM) and playwright-core under build/page (or PLAYWRIGHT).
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(model: str) -> int:
    shots = ROOT / "docs" / "images"
    shots.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", "0", "--log-format", "off"]
    environ = {"PLAYWRIGHT": str(ROOT / "build" / "page"), **os.environ}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().split()[-1].removesuffix("v1")
            drive = ["node", str(Path(__file__).with_name("drive.mjs")), url, str(shots)]
            return subprocess.run(drive, env=environ).returncode
        finally:
            server.terminate()


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or ["smollm2:135m"])))
