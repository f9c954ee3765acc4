"""The tokenizer and the chat template of a checkpoint: where the files of the weights' room meet the text room."""

from __future__ import annotations

from octavo.engine.port import Engine
from octavo.errors import BadFileError
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.fetch import resolve
from octavo.weights.stated import tokenizer_of


def load_tokenizer(model: str) -> Tokenizer:
    """Of a model as the user names it. Reads headers and the tokenizer, no weights."""
    checkpoint = open_checkpoint(resolve(model))
    try:
        return tokenizer_of(checkpoint)
    finally:
        checkpoint.close()


def check_template(template: ChatTemplate | None, engine: Engine) -> None:
    """The verdict on the template that came up beside the engine. A bad one ends the load: raises BadFileError."""
    if template is None:
        return
    try:
        template.check()
    except BadFileError:
        engine.close()
        raise
