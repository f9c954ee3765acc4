"""Clients that measure: an evaluation of answers on a task of our own, a load of requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from agents import Run

QUESTIONS = [
    ("The capital of France is", [" Paris", " Rome", " Madrid"], 0),
    ("The opposite of hot is", [" blue", " cold", " tall"], 1),
    ("A dog is an", [" animal", " ocean", " idea"], 0),
    ("Two plus two is", [" nine", " zero", " four"], 2),
]
TASK = """\
task: capitals
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
"""
WRITING = """\
task: writing
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: generate_until
doc_to_text: question
doc_to_target: answer
generation_kwargs:
  until: ["."]
  max_gen_toks: 8
metric_list:
  - metric: exact_match
"""


def lm_eval(bin_: Path, url: str, home: Path) -> list[Run]:
    """Log-likelihoods of choices by echo and logprobs, and texts; tokens are counted by the server."""
    data = home / "questions.jsonl"
    rows = [{"question": asked, "choices": choices, "answer": right} for asked, choices, right in QUESTIONS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "capitals.yaml").write_text(TASK.format(data=data))
    (home / "writing.yaml").write_text(WRITING.format(data=data))
    plain = f"model=default,base_url={url}/v1/completions,num_concurrent=2,max_retries=1"
    chat = plain.replace("/v1/completions", "/v1/chat/completions") + ",tokenizer_backend=None"
    common = [str(bin_ / "lm_eval"), "run", "--include_path", str(home), "--limit", "4"]
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(home / "cache")}

    def run(what: str, model: str, arguments: str, task: str, *more: str) -> Run:
        command = [*common, "--model", model, "--model_args", arguments, "--tasks", task, *more]
        return Run(what, command, environment, home, (rf"\|{task} *\|.*\|(acc|exact_match) *\|",))

    return [
        run("local-completions: log-likelihood", "local-completions", plain, "capitals"),
        run("local-completions: generation", "local-completions", plain, "writing"),
        run("local-chat-completions", "local-chat-completions", chat, "writing", "--apply_chat_template"),
    ]


def guidellm(bin_: Path, url: str, home: Path) -> list[Run]:
    """A handful of requests, one after the other and at once, over chat and over plain completions."""
    data = home / "prompts.jsonl"
    rows = [{"prompt": f"Tell me about the number {number}.", "output_tokens_count": 8} for number in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(home / "cache"), "CUDA_VISIBLE_DEVICES": ""}

    def run(what: str, path: str, profile: str) -> Run:
        backend = f"kind=openai_http,target={url},model=default,request_format={path},max_tokens=8"
        command = [str(bin_ / "guidellm"), "run", "--disable-console-interactive", "--backend", backend]
        command += ["--profile", profile, "--constraint", "kind=max_requests,count=6"]
        command += ["--data", f"kind=json_file,path={data}", "--output", "kind=console"]
        return Run(what, command, environment, home, (r"\| +6 +\| +\d +\| +0 +\|",))  # done, begun, failed

    return [
        run("chat, synchronous", "/v1/chat/completions", "kind=synchronous"),
        run("completions, concurrent", "/v1/completions", "kind=concurrent,streams=2"),
    ]


EVALUATORS: dict[str, Callable[[Path, str, Path], list[Run]]] = {"lm-eval": lm_eval, "guidellm": guidellm}
