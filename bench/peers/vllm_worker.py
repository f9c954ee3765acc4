"""vLLM on the processor, bfloat16: python vllm_worker.py FOLDER THREADS. FOLDER: config.json and safetensors.

compare.py loads Intel's OpenMP before it, as its manual advises.
"""

from __future__ import annotations

import os
import sys
import time

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "3",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": sys.argv[2],
}

import vllm
from worker import claim_stdout, serve


def main() -> None:
    out, began = claim_stdout(), time.perf_counter()
    llm = vllm.LLM(
        sys.argv[1], skip_tokenizer_init=True, dtype="bfloat16", enable_prefix_caching=False, max_num_seqs=64
    )
    engine = llm.llm_engine

    def generate(prompts: list[list[int]], steps: int) -> tuple[float, list[list[float]]]:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        for number, ids in enumerate(prompts):
            engine.add_request(str(number), {"prompt_token_ids": ids}, params)
        arrivals: list[list[float]] = [[] for _ in prompts]
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                times = arrivals[int(output.request_id)]
                times += [now] * (len(output.outputs[0].token_ids) - len(times))
        return start, arrivals

    serve(out, vllm.__version__, began, generate)


if __name__ == "__main__":
    main()
