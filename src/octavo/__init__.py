"""Octavo: exact, fast LLM inference on the machine you have. `from octavo import LLM, SamplingParams`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.engine.llm import LLM, AsyncLLM
    from octavo.request import SamplingParams, Structure

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "SamplingParams", "Structure", "__version__"]

_HOMES = {
    "LLM": "octavo.engine.llm",
    "AsyncLLM": "octavo.engine.llm",
    "SamplingParams": "octavo.request",
    "Structure": "octavo.request",
}


def __getattr__(name: str) -> Any:
    """Loads the public names on first use, so that `import octavo` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
