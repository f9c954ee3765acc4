"""Which dialect a chat template speaks, by what it spells; the most particular comes first."""

from __future__ import annotations

from dataclasses import replace

from octavo.text.dialects import deepseek, gemma, glm, harmony, hermes, llama3, mistral, qwen
from octavo.text.dialects.dialect import Dialect, Schemas
from octavo.text.dialects.harmony import HarmonyReader
from octavo.text.dialects.reader import MarkReader, Reader

DIALECTS = (
    harmony.DIALECT,
    deepseek.DSML,
    deepseek.FENCED,
    deepseek.DIALECT,
    mistral.NAMED,
    mistral.DIALECT,
    gemma.GEMMA4,
    gemma.FUNCTION_GEMMA,
    glm.DIALECT,
    qwen.DIALECT,
    hermes.DIALECT,
    llama3.DIALECT,
)
PLAIN = Dialect("plain", ())


def dialect_of(template: str | None) -> Dialect:
    """PLAIN for a template without any signs; reasoning marks count only where the template spells them."""
    text = template or ""
    found = next((dialect for dialect in DIALECTS if all(sign in text for sign in dialect.signs)), PLAIN)
    pairs = found.thoughts or hermes.THINK
    return replace(found, thoughts=tuple(pair for pair in pairs if pair[0] in text or pair[1] in text))


def takes_tools(template: str | None) -> bool:
    return "tools" in (template or "")


def reasons(template: str | None) -> bool:
    """Whether its outputs may hold reasoning."""
    dialect = dialect_of(template)
    return bool(dialect.thoughts) or dialect.name == harmony.DIALECT.name


def marks_of(dialect: Dialect) -> tuple[str, ...]:
    """Texts that the reader must see though they may be special tokens."""
    return harmony.MARKS if dialect.name == harmony.DIALECT.name else dialect.marks


def reader_for(dialect: Dialect, schemas: Schemas, prompt: str) -> Reader | None:
    """None where nothing but text can come. prompt: its text, of which the end matters."""
    if dialect.name == harmony.DIALECT.name:
        return HarmonyReader(schemas)
    if not dialect.thoughts and not (schemas and dialect.blocks):
        return None
    thinking = any(prompt.rstrip().endswith(open_) for open_, _ in dialect.thoughts)
    return MarkReader(dialect, schemas, thinking=thinking)
