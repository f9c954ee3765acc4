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
        return Run(what, command, environment, home, (f"|{task}", "|"))

    return [
        run("local-completions: log-likelihood", "local-completions", plain, "capitals"),
        run("local-completions: generation", "local-completions", plain, "writing"),
        run("local-chat-completions", "local-chat-completions", chat, "writing", "--apply_chat_template"),
    ]


EVALUATORS: dict[str, Callable[[Path, str, Path], list[Run]]] = {"lm-eval": lm_eval}
