"""The toy tokenizers as fixtures."""

from pathlib import Path

import pytest
from text_toys import byte_level_core, byte_level_gguf, sentencepiece_core, sentencepiece_gguf
from tokenizers import Tokenizer as Core
from tokenizers import decoders

from octavo.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def byte_core() -> Core:
    return byte_level_core()


@pytest.fixture(scope="session")
def piece_core() -> Core:
    return sentencepiece_core()


@pytest.fixture(scope="session")
def byte_file(byte_core: Core, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    byte_core.save(str(path))
    return path


@pytest.fixture(scope="session")
def piece_file(piece_core: Core, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces") / "tokenizer.json"
    piece_core.save(str(path))
    return path


@pytest.fixture(scope="session")
def byte_tokenizer(byte_file: Path) -> Tokenizer:
    return Tokenizer.from_files(byte_file, {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}, {})


@pytest.fixture(scope="session")
def piece_tokenizer(piece_file: Path) -> Tokenizer:
    return Tokenizer.from_files(piece_file, {"bos_token": "<s>", "eos_token": "</s>"}, {"eos_token_id": 2})


@pytest.fixture(scope="session")
def metaspace_tokenizer(piece_core: Core, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    core = Core.from_str(piece_core.to_str())
    core.decoder = decoders.Metaspace()
    path = tmp_path_factory.mktemp("metaspace") / "tokenizer.json"
    core.save(str(path))
    return Tokenizer.from_files(path, {"bos_token": "<s>", "eos_token": "</s>"}, {})


@pytest.fixture(scope="session", params=["bytes", "pieces", "gguf-bytes", "gguf-pieces"])
def tokenizer(request, byte_tokenizer, piece_tokenizer, byte_core, piece_core) -> Tokenizer:
    return {
        "bytes": lambda: byte_tokenizer,
        "pieces": lambda: piece_tokenizer,
        "gguf-bytes": lambda: Tokenizer.from_gguf(byte_level_gguf(byte_core)),
        "gguf-pieces": lambda: Tokenizer.from_gguf(sentencepiece_gguf(piece_core)),
    }[request.param]()
