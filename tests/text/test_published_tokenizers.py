"""Tokenizers of published models against the library that their files are written for; `make tokenizers` fetches them.

OCTAVO_TEST_TOKENIZERS names a folder with one folder a tokenizer, each with tokenizer.json and tokenizer_config.json.
"""

import json
import os
from pathlib import Path

import pytest
from text_toys import STRINGS
from tokenizers import Tokenizer as Core

from octavo.text.detokenizer import Detokenizer
from octavo.text.tokenizer import Tokenizer

ROOT = os.environ.get("OCTAVO_TEST_TOKENIZERS")
FOLDERS = sorted(path.parent for path in Path(ROOT).rglob("tokenizer.json")) if ROOT else []
LANGUAGES = [
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "כל הכבוד, שלום עולם — ١٢٣ مرحبا بالعالم",
    "अच्छा है, नमस्ते दुनिया।",
    "ฉันกินข้าวแล้ว",
    "いろはにほへと ちりぬるを 東京都",
    "敏捷的棕色狐狸跳过了懒狗。",
    "다람쥐 헌 쳇바퀴에 타고파",
    "Tiếng Việt có dấu: ắ ằ ẵ ẫ ấ",
    "🏳️‍🌈 👩🏽‍🚀 🇨🇿 ☃️",
    "e\u0301 vs \u00e9, \u212b, ﬁ, \u00a0nbsp\u200bzwsp",
    "def f(x):\n\treturn x ** 2  # 平方\n\n\nprint(f(12345678901234567890))",
    '{"key": [1, 2.5, null, true], "ü": "\\u00fc"}',
    "   leading, trailing   ",
    "\n\n\n",
    "<think>ok</think><tool_call>{}</tool_call>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]
pytestmark = pytest.mark.skipif(not FOLDERS, reason="OCTAVO_TEST_TOKENIZERS names no folder: make tokenizers")


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)).split("/")[0])
def pair(request):
    """(ours, the library's) of one published tokenizer."""
    config = json.loads((request.param / "tokenizer_config.json").read_text(encoding="utf-8"))
    file = request.param / "tokenizer.json"
    return Tokenizer.from_files(file, config), Core.from_file(str(file))


@pytest.mark.parametrize("text", [*STRINGS, *LANGUAGES])
def test_ids_and_text_are_the_librarys(pair, text):
    ours, core = pair
    core.encode_special_tokens = False
    ids = ours.encode(text, parse_special=True)
    assert ids == core.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids, skip_special=False) == core.decode(ids, skip_special_tokens=False)
    core.encode_special_tokens = True
    assert ours.encode(text) == core.encode(text, add_special_tokens=False).ids


def test_a_stream_is_the_whole_and_shows_no_broken_character(pair):
    """Token by token, after every prefix of one token and of none."""
    ours, _ = pair
    for text in [*STRINGS, *LANGUAGES]:
        ids = ours.encode(text)
        for known in (0, 1):
            stream = Detokenizer(ours, ids[:known])
            deltas = [stream.push([token]).text for token in ids[known:]]
            whole = "".join(deltas) + stream.finish()
            assert ours.decode(ids[:known]) + whole == ours.decode(ids) or "\ufffd" in ours.decode(ids[:known])
            if known == 0:
                assert ("\ufffd" in whole) == ("\ufffd" in ours.decode(ids))
