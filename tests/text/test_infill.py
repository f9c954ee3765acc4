"""Prompts around a gap, as the models that know them were taught them."""

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from octavo.errors import UnsupportedError
from octavo.text.infill import FORMS, Infill
from octavo.text.tokenizer import Tokenizer


def bytes_with(folder, marks, *, special=True, **config):
    """A byte-level tokenizer that has these tokens too."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Core(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in ("<s>", "<e>", *marks)])
    core.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_files(folder / "tokenizer.json", {"bos_token": "<s>", "eos_token": "<e>"} | config)


def spelled(tokenizer, ids):
    return "".join(tokenizer.pieces.text(token) if token >= 256 else tokenizer.decode([token]) for token in ids)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("special", [True, False])
def test_every_form(tmp_path, form, special):
    tokenizer = bytes_with(tmp_path, [*form.marks, *form.ends], special=special)
    infill = Infill(tokenizer)
    expected = "".join({"before": "a(", "after": ")b"}.get(part, part) for part in form.order)
    assert spelled(tokenizer, infill.encode("a(", ")b")) == expected
    assert sorted(spelled(tokenizer, [token]) for token in infill.stop_ids) == sorted({*form.marks, *form.ends})


def test_texts_that_spell_marks_and_empty_ones(tmp_path):
    tokenizer = bytes_with(tmp_path, FORMS[0].marks)
    infill = Infill(tokenizer)
    ids = infill.encode("<|fim_middle|>", "")
    assert ids[-2:] == [tokenizer.encode(mark, parse_special=True)[0] for mark in FORMS[0].marks[1:]]
    assert len(ids) == len("<|fim_middle|>") + 3 and len(infill.encode("", "")) == 3
    assert len(infill.stop_ids) == 3


def test_a_model_that_begins_with_a_token(tmp_path):
    tokenizer = bytes_with(tmp_path, FORMS[0].marks, add_bos_token=True)
    assert Infill(tokenizer).encode("a", "b")[0] == tokenizer.bos_id


def test_the_text_after_the_gap_is_no_new_text(tmp_path):
    """SentencePiece marks the first word of a text with a space."""
    form = FORMS[4]
    pieces = ["<unk>", "▁", "a", "b", ")", "☺", *form.marks]
    core = Core(models.BPE({piece: place for place, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    core.decoder = decoders.Metaspace(prepend_scheme="first")
    core.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in form.marks])
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_files(tmp_path / "tokenizer.json", {})
    ids = Infill(tokenizer).encode("a", ") b")
    assert [tokenizer.pieces.text(token) for token in ids] == ["▁<PRE>", "▁", "a", "▁<SUF>", ")", "▁", "b", "▁<MID>"]


def test_a_model_that_knows_no_gap(tmp_path):
    with pytest.raises(UnsupportedError) as refused:
        Infill(bytes_with(tmp_path, FORMS[0].marks[:2]))
    assert refused.value.param == "suffix"
