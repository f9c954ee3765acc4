"""The real file: ids by the rule that its metadata names (digits one by one, then byte-level), and its template."""

import pytest
from text_toys import STRINGS
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from octavo.errors import MissingFileError
from octavo.text.chat import ChatTemplate
from octavo.text.detokenizer import Detokenizer
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.fetch import resolve


@pytest.fixture(scope="module")
def metadata():
    try:
        path = resolve("smollm2:135m")
    except MissingFileError as missing:
        pytest.skip(missing.message)
    checkpoint = open_checkpoint(path)
    yield checkpoint.tokenizer
    checkpoint.close()


@pytest.fixture(scope="module")
def tokenizer(metadata):
    return Tokenizer.from_gguf(metadata)


@pytest.fixture(scope="module")
def rule(metadata):
    tokens = metadata["tokenizer.ggml.tokens"]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
    core = Core(models.BPE(vocabulary, merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[:17]])
    return core


@pytest.mark.parametrize("text", STRINGS)
def test_ids_are_those_of_the_rule(tokenizer, rule, text):
    rule.encode_special_tokens = True
    ids = tokenizer.encode(text)
    assert ids == rule.encode(text).ids
    assert tokenizer.decode(ids) == text
    rule.encode_special_tokens = False
    assert tokenizer.encode(text, parse_special=True) == rule.encode(text).ids


def test_stream_equals_decode(tokenizer):
    ids = tokenizer.encode("".join(STRINGS))
    detokenizer = Detokenizer(tokenizer, ids[:5])
    text = "".join(detokenizer.push([token]).text for token in ids[5:]) + detokenizer.finish()
    assert tokenizer.decode(ids[:5]) + text == tokenizer.decode(ids)


def test_properties(tokenizer):
    assert tokenizer.size == 49152
    assert tokenizer.bos_token == "<|im_start|>" and tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_ids == (2, 0)


def test_its_template(tokenizer, rule):
    template = ChatTemplate.of(tokenizer)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(messages) == text
    rule.encode_special_tokens = False
    assert template.encode(tokenizer, messages) == rule.encode(text).ids
    template.close()
