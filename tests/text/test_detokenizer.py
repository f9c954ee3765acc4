"""Streams: joined deltas are the whole text, characters come whole, stop strings are never shown in part."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_toys import text_strategy

from octavo.text.detokenizer import Detokenizer


def stream(tokenizer, prompt, output, *, sizes=(1,), **options):
    """Texts of all deltas, the last from finish, and the stop."""
    detokenizer = Detokenizer(tokenizer, prompt, **options)
    texts, place, turn, stop = [], 0, 0, None
    while place < len(output) and stop is None:
        size = sizes[turn % len(sizes)]
        piece = detokenizer.push(output[place : place + size])
        texts.append(piece.text)
        stop = piece.stop
        place, turn = place + size, turn + 1
    return [*texts, detokenizer.finish()], stop


def spell(tokenizer, text):
    """One token per byte where the vocabulary allows: the hardest way to write a text."""
    by_bytes = {tokenizer.token_bytes(token): token for token in range(tokenizer.size)}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


@settings(max_examples=150, deadline=None)
@given(prompt=text_strategy, output=text_strategy, sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_joined_deltas_are_the_whole_text(tokenizer, prompt, output, sizes):
    prompt_ids, ids = tokenizer.encode(prompt), tokenizer.encode(output)
    texts, _ = stream(tokenizer, prompt_ids, ids, sizes=sizes)
    assert "".join(texts) == tokenizer.decode(prompt_ids + ids)[len(tokenizer.decode(prompt_ids)) :]


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 519), max_size=20))
def test_any_ids_stream_as_they_decode(tokenizer, ids):
    for skip in (True, False):
        texts, _ = stream(tokenizer, [], ids, skip_special=skip)
        assert "".join(texts) == tokenizer.decode(ids, skip_special=skip)


def test_prompt_that_ends_inside_a_character(byte_tokenizer):
    ids = spell(byte_tokenizer, "Hello \N{HOT PEPPER}!")
    texts, _ = stream(byte_tokenizer, ids[:-3], ids[-3:])
    assert "".join(texts) == "\N{HOT PEPPER}!"


@pytest.mark.parametrize("output", ["a", "\N{HOT PEPPER}", "", "\ufffd"])
def test_a_prompt_character_that_is_never_completed_is_not_generated_text(byte_tokenizer, output):
    prompt = spell(byte_tokenizer, "Hello \N{HOT PEPPER}")[:-2]
    texts, _ = stream(byte_tokenizer, prompt, spell(byte_tokenizer, output))
    assert "".join(texts) == output


def test_characters_come_whole(byte_tokenizer):
    text = "ďábelské \N{HOT PEPPER} 東"
    texts, _ = stream(byte_tokenizer, [], spell(byte_tokenizer, text))
    assert "".join(texts) == text
    assert not any("\ufffd" in part for part in texts)


def test_invalid_bytes_become_replacement_characters(byte_tokenizer):
    by_bytes = {byte_tokenizer.token_bytes(token): token for token in range(byte_tokenizer.size)}
    ids = [by_bytes[bytes([byte])] for byte in b"a\xe6\x80=b\xff"]
    texts, _ = stream(byte_tokenizer, [], ids)
    assert "".join(texts) == "a\ufffd=b\ufffd" == byte_tokenizer.decode(ids)


def test_leading_spaces(piece_tokenizer, byte_tokenizer):
    ids = [piece_tokenizer.encode("x")[0], *piece_tokenizer.encode("leading x")]
    assert piece_tokenizer.token_bytes(ids[0]) in (b" ", b" x")
    texts, _ = stream(piece_tokenizer, [], ids)
    assert "".join(texts) == piece_tokenizer.decode(ids)
    after_bos, _ = stream(piece_tokenizer, [1], piece_tokenizer.encode("leading x"))
    assert "".join(after_bos) == "leading x"
    after_text, _ = stream(piece_tokenizer, [1, *piece_tokenizer.encode("the")], piece_tokenizer.encode("leading x"))
    assert "".join(after_text) == " leading x"
    spaced, _ = stream(byte_tokenizer, byte_tokenizer.encode("a"), byte_tokenizer.encode(" the"))
    assert "".join(spaced) == " the"


def test_first_token_of_metaspace(metaspace_tokenizer):
    ids = metaspace_tokenizer.encode("the leading x")
    assert "".join(stream(metaspace_tokenizer, [1], ids)[0]) == "the leading x"
    assert "".join(stream(metaspace_tokenizer, ids, ids)[0]) == " the leading x"


def test_no_part_of_a_stop_string_is_shown(byte_tokenizer):
    texts, stop = stream(byte_tokenizer, [], spell(byte_tokenizer, "ABCDEFGHIJK"), stop=["DEFGHIJ"])
    assert texts == ["A", "B", "C", *[""] * 8] and stop == ("DEFGHIJ", 10)


def test_a_stop_string_that_never_comes_changes_nothing(byte_tokenizer):
    text = "ZZZ and ZZ and Z"
    with_stop, stop = stream(byte_tokenizer, [], spell(byte_tokenizer, text), stop=["ZZZZ"])
    assert "".join(with_stop) == text and stop is None
    assert with_stop[-1] == "Z"


def test_stop_string_in_the_output(byte_tokenizer):
    texts, stop = stream(byte_tokenizer, [], spell(byte_tokenizer, "one END two"), stop=["END"], include_stop=True)
    assert "".join(texts) == "one END" and stop == ("END", 7)


def test_text_of_the_prompt_does_not_count_for_a_stop(byte_tokenizer):
    texts, stop = stream(byte_tokenizer, spell(byte_tokenizer, "EN"), spell(byte_tokenizer, "D two"), stop=["END"])
    assert "".join(texts) == "D two" and stop is None


def test_first_complete_stop_counts_then_the_longest(byte_tokenizer):
    ids = spell(byte_tokenizer, "xabcd")
    assert stream(byte_tokenizer, [], ids, stop=["abcd", "bc"])[1] == ("bc", 4)
    assert stream(byte_tokenizer, [], ids, stop=["bc", "abc"])[1] == ("abc", 4)


def test_stop_strings_wait_for_min_tokens(byte_tokenizer):
    ids = spell(byte_tokenizer, "END. END.")
    texts, stop = stream(byte_tokenizer, [], ids, stop=["END"], min_tokens=4)
    assert "".join(texts) == "END. " and stop == ("END", 8)


def test_after_a_stop_there_is_nothing(byte_tokenizer):
    detokenizer = Detokenizer(byte_tokenizer, [], stop=["b"])
    assert detokenizer.push(spell(byte_tokenizer, "abc")).stop == ("b", 2)
    assert detokenizer.push(spell(byte_tokenizer, "def")).text == ""
    assert detokenizer.finish() == ""


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(alphabet="ab\N{HOT PEPPER}", max_size=24),
    stops=st.lists(st.text(alphabet="ab\N{HOT PEPPER}", min_size=1, max_size=4), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    include=st.booleans(),
)
def test_stops_at_every_split(byte_tokenizer, text, stops, sizes, include):
    """The oracle reads the text character by character and cuts at the first stop string that is complete."""
    ids = spell(byte_tokenizer, text)
    texts, stop = stream(byte_tokenizer, [], ids, sizes=sizes, stop=stops, include_stop=include)
    for end in range(1, len(text) + 1):
        ending = [found for found in stops if text[:end].endswith(found)]
        if ending:
            found = max(ending, key=len)
            assert "".join(texts) == text[: end if include else end - len(found)]
            assert stop == (found, len(text[:end].encode()))
            return
    assert "".join(texts) == text and stop is None
