"""Memory while loading: the packed weights and bounded buffers, no second copy, whatever the largest tensor is."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_model import vocabulary
from test_shapes import shapes as shapes  # the fixture

pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")
ROOM = 40 << 20  # one mapped piece, a panel a thread, the interpreter's own growth
PEAK = """
import json, sys
from octavo.config import EngineConfig
from octavo.drafters.null import no_drafter
from octavo.runner.runner import Runner

def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10

before = peak()
small = dict(num_blocks=4, max_model_len=64, max_num_seqs=1, max_num_batched_tokens=16)
config = EngineConfig(model=sys.argv[1], threads=2, **small)
runner = Runner.open(config, no_drafter, lambda done, total: None)
print(json.dumps([before, peak(), runner.loaded.weights_bytes]))
"""


@pytest.mark.parametrize("kind", ["Q8_0", "BF16"])
def test_the_peak_is_the_packed_size_and_little_more(shapes, model, tmp_path, kind):
    """Nearly all of this model is one matrix: held beside its file's pages it would be twice as large."""
    words = {f"tokenizer.ggml.{name}": value for name, value in vocabulary(Path(model), 272).items()}
    small = {"layers": 1, "hidden": 1024, "inner": 1024, "heads": 4, "kv_heads": 2, "head": 64}
    rows = (96 << 20) // (1088 if kind == "Q8_0" else 2048)
    shape = replace(shapes.SHAPES["llama-3.2-1b"], **small, vocabulary=rows)
    shapes.write_gguf(shape, kind, tmp_path / "wide.gguf", words)
    command = [sys.executable, "-c", PEAK, str(tmp_path / "wide.gguf")]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    before, peak, packed = json.loads(out.stdout.splitlines()[-1])
    assert packed > 96 << 20
    assert packed <= peak - before < packed + ROOM
