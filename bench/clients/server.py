"""A server whose model is a script, for clients that a small model cannot drive: it does what it is told.

    PYTHONPATH=src:tests/server python bench/clients/server.py [--port 0]

What it says: an instance of the schema where one is asked for; a call where the last message has a line
`call NAME {arguments}` and that tool is declared, or where a call is forced; "The tool said: ..." after a result;
otherwise "You said: ..." with the last line of the last message.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import uvicorn
from scripted import ScriptedLLM
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, trainers

from octavo.engine.inputs import InputReader
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.keys import Key
from octavo.server.models import Models
from octavo.server.seat import ServedModel
from octavo.server.serving import address, bind
from octavo.text.tokenizer import Tokenizer

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call> <think>{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
ASKED = re.compile(r"^call (\S+) (\{.*\})\s*$", re.M)
KEPT = 64  # conversations that are remembered until their outputs begin


def tokenizer() -> Tokenizer:
    """Bytes and the marks of ChatML."""
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=marks, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(["The quick brown fox"] * 4, trainer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        core.save(str(path))
        config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
        return Tokenizer.from_files(path, config, {"eos_token_id": 2})


def instance(schema: Any, root: Any = None) -> Any:
    """A small value that the schema allows; of keywords it knows those that clients' models of data are made of."""
    root = schema if root is None else root
    if not isinstance(schema, dict):
        return {}
    if "$ref" in schema:
        found = root
        for name in schema["$ref"].lstrip("#/").split("/"):
            found = found[name]
        return instance(found, root)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return instance(schema[keyword][0], root)
    if "const" in schema or "enum" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        required = schema.get("required", list(properties))
        return {name: instance(inner, root) for name, inner in properties.items() if name in required}
    if kind == "array":
        return [instance(schema.get("items", {"type": "string"}), root)]
    return {"string": "Ada", "integer": 36, "number": 1.5, "boolean": True}.get(kind)


def spelled(form: list[Any]) -> str:
    """A short text that a form (octavo.form) allows: where calls may be, none; where one must be, the first."""
    kind, *parts = form
    if kind in ("text", "mark", "until"):
        return str(parts[0])
    if kind == "value":
        return json.dumps(instance(parts[0]))
    if kind == "given":
        return json.dumps(instance(json.loads(parts[1])))
    if kind == "seq":
        return "".join(map(spelled, parts))
    if kind == "some":
        return spelled(parts[0])
    if kind == "either":
        open_ends = (part for part in parts if part[0] in ("free", "given"))
        return spelled(next(open_ends, parts[0]))
    return ""


class Embedder(ScriptedLLM):
    """One vector for everything, but for its last number."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.info = dataclasses.replace(self.info, name="toy/vectors", task="embed", step_tokens=256)
        self._reader = InputReader(self.info, tokenizer, self._structures)


class ToldLLM(ScriptedLLM):
    """Remembers the conversations behind its prompts."""

    def __init__(self) -> None:
        super().__init__(tokenizer(), max_model_len=1 << 20, num_blocks=1 << 17)
        self._scripts: dict[str, list[int]] = {}
        self._told: OrderedDict[tuple[int, ...], tuple[list[dict[str, Any]], dict[str, Any]]] = OrderedDict()

    def encode_chat(self, messages: Any, /, **options: Any) -> list[int]:
        ids = super().encode_chat(messages, **options)
        self._told[tuple(ids)] = (list(messages), options)
        while len(self._told) > KEPT:
            self._told.popitem(last=False)
        return ids

    def ids_of(self, request: Any) -> list[int]:
        if request.id not in self._scripts:
            ids = [*self.tokenizer.encode(self._answer(request)), self.tokenizer.eos_ids[0]]
            self._scripts[request.id] = ids
        return self._scripts[request.id]

    def _answer(self, request: Any) -> str:
        messages, options = self._told.get(tuple(request.prompt_ids), ([], {}))
        if not messages:
            return "You said: " + self.tokenizer.decode(request.prompt_ids[-40:])
        since = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        latest = messages[since[-1] + 1 :] if since else messages
        results = [_text(message) for message in latest if message["role"] == "tool"]
        if results:
            return f"The tool said: {results[-1].strip()[-200:]}"
        text = "\n".join(_text(message) for message in latest if message["role"] == "user")
        declared = {tool["function"]["name"] for tool in options.get("tools", ())}
        for name, arguments in ASKED.findall(text):
            if name in declared:
                call = json.dumps({"name": name, "arguments": json.loads(arguments)})
                return f"<think>I was told to.</think>Calling.<tool_call>\n{call}\n</tool_call>"
        structure = request.params.structure
        if structure is not None and structure.kind in ("json_schema", "form"):
            source = json.loads(structure.source)
            wanted = spelled(source if structure.kind == "form" else ["given", structure.kind, structure.source])
            if wanted:
                return wanted
        return "You said: " + (text.strip().splitlines() or [""])[-1][:200]


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def main() -> None:
    parser = argparse.ArgumentParser(description="serves a scripted model")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", help="the API key that it wants")
    options = parser.parse_args()
    config = ServerConfig(port=options.port, keys=(Key.of(options.key),) if options.key else ())
    with bind(config) as listener:
        print(f"listening on {address(listener)}", flush=True)
        told, vectors = ToldLLM(), Embedder(tokenizer())
        served = [ServedModel(llm.info.name, lambda _, llm=llm: llm) for llm in (told, vectors)]
        app = create_app(Models(served), config)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).run(sockets=[listener])


if __name__ == "__main__":
    main()
