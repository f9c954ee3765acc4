"""What `octavo train head` refuses: a line each, and nothing is left behind."""

import json

import pytest
from tiny_model import CONFIG, random_tensors, write_tokenizer


@pytest.fixture
def refused(train):
    """refused(code, word, kind, out, words...) -> the line."""

    def call(code, word, *given, **named):
        found = train(*given, **named)
        assert (found.code, found.out) == (code, "") and found.err.count("\n") == 1, found.err
        assert found.err.startswith(f"error: {word}: ")
        return found.err

    return call


def test_values_that_make_no_sense(refused, tmp_path):
    out = tmp_path / "out"
    for words in (("--batch", 0), ("--depth", 0), ("--draft-vocab", -1), ("--lr", 0), ("--minutes", 0), ("--decay", 2)):
        assert str(words[0]) in refused(2, "usage", "medusa", out, *words)
    assert "--window 96" in refused(2, "usage", "medusa", out, "--generate", 80)
    assert "--generate" in refused(2, "usage", "medusa", out, "--chat", 0.5)
    assert "--generate" in refused(2, "usage", "medusa", out, data="questions")
    assert not out.exists()


def test_without_torch(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("octavo.train.find_spec", lambda name: None)
    assert "octavo[torch]" in refused(69, "torch_missing", "medusa", tmp_path / "out")


def test_data_that_is_not_there_or_not_text(refused, home, tmp_path):
    out = tmp_path / "out"
    refused(66, "file_missing", "medusa", out, data="none.txt")
    (home / "bytes.txt").write_bytes(b"\xff\xfe")
    refused(65, "bad_text", "medusa", out, data="bytes.txt")
    (home / "bad.jsonl").write_text('{"prompt": "a"}\n[1]\n')
    assert "line 2" in refused(65, "bad_log", "medusa", out, data="bad.jsonl")
    (home / "ids.jsonl").write_text(json.dumps({"prompt": [1, 99999], "output": "a"}))
    assert "token ids" in refused(2, "invalid_value", "medusa", out, data="ids.jsonl")
    (home / "hot.jsonl").write_text(json.dumps({"prompt": "a", "temperature": "hot"}))
    assert "'hot'" in refused(2, "invalid_value", "medusa", out, "--generate", 8, data="hot.jsonl")
    (home / "short.txt").write_text("the")
    assert "two sequences" in refused(2, "invalid_value", "medusa", out, data="short.txt")
    (home / "empty").mkdir(exist_ok=True)
    refused(66, "file_missing", "medusa", out, data="empty")
    assert not out.exists()


def test_a_place_that_is_taken_or_not_there(refused, train, tmp_path):
    out = tmp_path / "out"
    refused(66, "file_missing", "medusa", tmp_path / "no" / "out")
    assert "no training" in refused(2, "usage", "medusa", out, "--resume")
    assert train("medusa", out).code == 0
    assert "--resume" in refused(2, "out_exists", "medusa", out)


def test_another_run_is_not_gone_on_with(refused, train, tmp_path):
    out = tmp_path / "out"
    assert train("medusa", out, "--minutes", 1e-9).code == 0
    assert "lr 0.001, not 0.01" in refused(2, "usage", "medusa", out, "--lr", 0.01, "--resume")
    assert "of another window" in refused(2, "usage", "medusa", out, "--window", 64, "--resume")
    (out / "training" / "progress.json").write_text("{")
    refused(65, "bad_json", "medusa", out, "--resume")


def test_features_of_something_else(refused, train, tmp_path):
    shared = ("--features", tmp_path / "features")
    assert train("medusa", tmp_path / "one", *shared).code == 0
    assert "of another seed" in refused(2, "usage", "medusa", tmp_path / "two", *shared, "--seed", 1)


def test_a_model_that_is_no_decoder_of_one_head(refused, tmp_path, train, home):
    bert = home / "bert"
    bert.mkdir()
    config = {
        **{"architectures": ["BertModel"], "vocab_size": 272, "hidden_size": 48, "num_hidden_layers": 1},
        **{"num_attention_heads": 3, "intermediate_size": 64, "max_position_embeddings": 64, "type_vocab_size": 2},
    }
    (bert / "config.json").write_text(json.dumps(config))
    write_tokenizer(bert)
    from safetensors.numpy import save_file

    save_file(random_tensors(CONFIG, 0), bert / "model.safetensors")
    line = refused(2, "unsupported", "medusa", tmp_path / "out", "--model", bert)
    assert "decoders" in line
