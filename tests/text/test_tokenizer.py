"""Tokenizer over tokenizer.json: ids and text as the tokenizers library gives them, specials only when asked for."""

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from text_toys import STRINGS, text_strategy
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, processors

from octavo.errors import BadFileError, MissingFileError, RequestError
from octavo.text.pieces import PieceTable
from octavo.text.tokenizer import Tokenizer


@pytest.mark.parametrize("text", STRINGS)
def test_ids_and_text_equal_the_library(text, byte_core, byte_tokenizer, piece_core, piece_tokenizer):
    for core, tokenizer in ((byte_core, byte_tokenizer), (piece_core, piece_tokenizer)):
        core.encode_special_tokens = True
        ids = tokenizer.encode(text)
        assert ids == core.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == core.decode(ids)


@settings(max_examples=150, deadline=None)
@given(text=text_strategy)
def test_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=100, deadline=None)
@given(text=text_strategy)
def test_token_bytes_join_to_the_text(byte_tokenizer, text):
    joined = b"".join(byte_tokenizer.token_bytes(token) for token in byte_tokenizer.encode(text))
    assert joined == text.encode()


def test_a_user_cannot_spell_a_special_token(tokenizer):
    special = tokenizer.special_texts[-1]
    spelled = tokenizer.encode(f"a{special}b")
    assert not set(spelled) & tokenizer.special_ids
    assert tokenizer.decode(spelled) == f"a{special}b"
    parsed = tokenizer.encode(f"a{special}b", parse_special=True)
    assert len(set(parsed) & tokenizer.special_ids) == 1
    assert special in tokenizer.decode(parsed, skip_special=False)
    assert special not in tokenizer.decode(parsed)


def test_exactly_one_bos(piece_tokenizer):
    assert piece_tokenizer.encode("hi", add_special=True)[:1] == [1]
    for text in ("hi", "<s>hi"):
        ids = piece_tokenizer.encode(text, add_special=True, parse_special=True)
        assert ids.count(1) == 1 and ids[0] == 1


def test_add_bos_token_of_the_configuration(byte_file):
    tokenizer = Tokenizer.from_files(byte_file, {"bos_token": "<|im_start|>", "add_bos_token": True}, {})
    assert tokenizer.encode("hi", add_special=True) == [1, *tokenizer.encode("hi")]
    assert tokenizer.encode("<|im_start|>hi", add_special=True, parse_special=True).count(1) == 1


def test_ends_come_from_generation_config_then_names(byte_file):
    config = {"eos_token": "<|endoftext|>"}
    assert Tokenizer.from_files(byte_file, config, {"eos_token_id": [2, 0]}).eos_ids == (0, 2)
    assert Tokenizer.from_files(byte_file, config, {}).eos_ids == (0, 2)
    assert Tokenizer.from_files(byte_file, config, {"eos_token_id": 0}).eos_ids == (0,)


def test_added_tokens_that_are_no_specials_are_text(byte_core, tmp_path):
    core = Core.from_str(byte_core.to_str())
    core.add_tokens(["<think>"])
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_files(tmp_path / "tokenizer.json")
    ids = tokenizer.encode("<think>x")
    assert tokenizer.token_bytes(ids[0]) == b"<think>"
    assert tokenizer.decode(ids) == "<think>x"


def test_ids_beyond_the_vocabulary_stand_for_nothing(tokenizer):
    assert tokenizer.token_bytes(tokenizer.size + 3) == b""
    assert all(tokenizer.token_bytes(token) == b"" for token in tokenizer.special_ids)


def test_metaspace_decoder_equals_the_library(piece_core, metaspace_tokenizer):
    core = Core.from_str(piece_core.to_str())
    core.decoder = decoders.Metaspace()
    ids = metaspace_tokenizer.encode("the leading dog")
    assert metaspace_tokenizer.decode(ids) == core.decode(ids) == "the leading dog"


def test_template_sources(byte_core, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    byte_core.save(str(path))
    named = [{"name": "tool_use", "template": "B"}, {"name": "default", "template": "A"}]
    assert Tokenizer.from_files(path, {"chat_template": named}).chat_template == "A"
    assert Tokenizer.from_files(path, {}).chat_template is None
    (tmp_path / "chat_template.jinja").write_text("C")
    assert Tokenizer.from_files(path, {"chat_template": "A"}).chat_template == "C"


def test_truncation_and_padding_of_the_file_do_not_apply(byte_core, tmp_path):
    core = Core.from_str(byte_core.to_str())
    core.enable_truncation(3)
    core.enable_padding(length=8)
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_files(tmp_path / "tokenizer.json")
    assert tokenizer.decode(tokenizer.encode("The quick brown fox")) == "The quick brown fox"


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"version":"1.0","model":{"type":"X"}}', "\x00" * 64, "[" * 5000]
)
def test_broken_files_are_one_line(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(BadFileError) as raised:
        Tokenizer.from_files(path)
    assert raised.value.code == "bad_tokenizer" and str(path) in raised.value.message
    assert "\n" not in raised.value.message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"absent\.json"):
        Tokenizer.from_files(tmp_path / "absent.json")


def test_an_unknown_decoder_is_named(byte_core, tmp_path):
    state = json.loads(byte_core.to_str())
    state["decoder"] = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(state))
    with pytest.raises(BadFileError, match="CTC"):
        Tokenizer.from_files(path)


def test_wordpiece(tmp_path):
    """A piece that goes on with a word has a mark; words have none, and the first no space."""
    words = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "the": 3, "hat": 4, "##ter": 5, "##s": 6, "é": 7}
    core = Core(models.WordPiece(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_files(tmp_path / "tokenizer.json")
    ids = tokenizer.encode("the hatters é", add_special=True)
    assert ids == [1, 3, 4, 5, 6, 7, 2]
    assert tokenizer.decode(ids) == "the hatters é"


def test_other_threads_run_while_a_long_text_is_encoded(byte_tokenizer):
    order: list[str] = []
    begun = threading.Event()

    def encode() -> None:
        begun.set()
        byte_tokenizer.encode("a rather long text, " * 50_000)
        order.append("encoded")

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    for _ in range(3):
        time.sleep(0.01)
    order.append("meanwhile")
    thread.join()
    assert order == ["meanwhile", "encoded"]


def test_a_lone_surrogate_is_refused(byte_tokenizer):
    with pytest.raises(RequestError, match="surrogate"):
        byte_tokenizer.encode("a\ud800b")


def test_an_added_token_of_spaces_is_spaces():
    """As Gemma has them. A byte-level vocabulary spells what was added as it is."""
    assert PieceTable(["▁▁"], byte_level=False, verbatim=[0]).piece(0) == b"  "
    assert PieceTable(["<｜a▁b｜>"], byte_level=True, verbatim=[0]).piece(0) == "<｜a▁b｜>".encode()  # noqa: RUF001
