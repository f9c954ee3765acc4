"""A scripted model behind the real app: in process (client) and on a socket (live)."""

import copy
import json
from pathlib import Path

import pytest
from listening import listening
from scripted import ScriptedLLM
from starlette.testclient import TestClient
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, trainers

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{% if thinking %}<think>{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory) -> Tokenizer:
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(["The quick brown fox"] * 4, trainer)
    path: Path = tmp_path_factory.mktemp("model") / "tokenizer.json"
    core.save(str(path))
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    return Tokenizer.from_files(path, config, {"eos_token_id": 2})


@pytest.fixture(scope="session")
def template(tokenizer):
    built = ChatTemplate.of(tokenizer)
    yield built
    built.close()


@pytest.fixture(scope="session")
def hermes(tokenizer):
    """The toy tokenizer and its template, with a place for tools, reasoning and results."""
    source = (
        "{% if tools %}{{ tools | tojson }} <tool_call> <think>{% endif %}"
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n{% if thinking %}<think>\n{% endif %}"
    )
    taught = copy.copy(tokenizer)
    taught.chat_template = source
    template = ChatTemplate.of(taught)
    yield taught, template
    template.close()


@pytest.fixture(params=["scripted"])
def llm(request, tokenizer, template):
    return ScriptedLLM(tokenizer, template)


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0)


@pytest.fixture
def client(llm, config):
    with TestClient(create_app(llm, config), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def live(llm, config):
    """The address of a listening server, ending in /v1."""
    with listening(llm, config) as address:
        yield address


@pytest.fixture
def ask(client):
    """ask(fields...) -> response of a chat completion, ask.text(fields...) of a plain one; None removes a field."""

    def post(path, base, fields):
        body = {name: value for name, value in (base | fields).items() if value is not ...}
        return client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})

    def chat(**fields):
        messages = [{"role": "user", "content": "Hi"}]
        return post("/v1/chat/completions", {"model": "toy/model", "messages": messages}, fields)

    chat.text = lambda **fields: post("/v1/completions", {"model": "toy/model", "prompt": "Hi"}, fields)
    return chat


def events(response):
    """Payloads of a streamed answer, [DONE] checked and left out."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.fixture
def parsed():
    return events


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    """Stands still until a test moves `now`."""
    return Clock()
