"""OpenVINO GenAI over its own GGUF reader: python openvino_worker.py MODEL.gguf THREADS BATCHED_TOKENS.

Its scheduler, batching and sampling included; its defaults for activations and cache. Prefix caching is off.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import openvino
import openvino_genai
from worker import claim_stdout, serve


def main() -> None:
    out, began = claim_stdout(), time.perf_counter()
    model, threads, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 3
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = tokens
    scheduler.max_num_seqs = 64
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})

    def generate(prompts: list[list[int]], steps: int) -> tuple[float, list[list[float]]]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = steps, True, False
        start = time.perf_counter()
        handles = [
            pipeline.add_request(number, openvino.Tensor(np.array([ids], dtype=np.int64)), config)
            for number, ids in enumerate(prompts)
        ]
        arrivals: list[list[float]] = [[] for _ in prompts]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now = time.perf_counter()
            for times, handle in zip(arrivals, handles, strict=True):
                while handle.can_read():
                    times += [now] * sum(len(output.generated_ids) for output in handle.read().values())
        return start, arrivals

    serve(out, openvino_genai.__version__, began, generate)


if __name__ == "__main__":
    main()
