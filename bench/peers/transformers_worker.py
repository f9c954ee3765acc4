"""transformers, bfloat16: python transformers_worker.py FOLDER THREADS; or --convert FILE.gguf FOLDER.

--convert writes the weights of a GGUF file as the safetensors folder that this worker and vLLM's read.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import transformers
from worker import claim_stdout, serve


class Clock(transformers.generation.streamers.BaseStreamer):
    """Notes when the tokens of a step arrive; the prompt comes first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def convert(source: Path, folder: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(source.parent), gguf_file=source.name, dtype=torch.bfloat16
    )
    model.config.__dict__.pop("quantization_config", None)  # the loaded model counts as quantized and would not save
    plain = type(model)(model.config).to(torch.bfloat16)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)


def main() -> None:
    if sys.argv[1] == "--convert":
        convert(Path(sys.argv[2]), sys.argv[3])
        return
    out, began = claim_stdout(), time.perf_counter()
    torch.set_num_threads(int(sys.argv[2]))
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)

    def generate(prompts: list[list[int]], steps: int) -> tuple[float, list[list[float]]]:
        ids, clock = torch.tensor(prompts), Clock()
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=steps,
                min_new_tokens=steps,
                pad_token_id=0,
                streamer=clock,
            )
        return start, [clock.times[1:]] * len(prompts)

    serve(out, transformers.__version__, began, generate)


if __name__ == "__main__":
    main()
