"""The table of executors by name. A backend is imported when it is asked for, so that none is needed by the others."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from octavo.errors import ResourceError, UnsupportedError

# name -> (module, class, what must be installed, the dtype that "auto" means, the dtypes it has)
EXECUTORS: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {
    "native": ("octavo.backends.native.executor", "NativeExecutor", "octavo._native", "bfloat16", ("bfloat16",)),
    "reference": (
        "octavo.backends.reference.executor",
        "ReferenceExecutor",
        "torch",
        "float32",
        ("float32", "bfloat16"),
    ),
}


def executor_for(name: str, dtype: Literal["auto", "float32", "bfloat16"] = "auto") -> Any:
    """The executor `name` (see port.Executor) that computes in `dtype`; float32 leaves every value unrounded.

    Raises UnsupportedError for an unknown name or a dtype that it lacks, ResourceError when its library is missing.
    """
    chosen = dtype_for(name, dtype)
    module, cls, needs, _, dtypes = EXECUTORS[name]
    if find_spec(needs) is None:
        raise ResourceError(f"the {name} executor needs {needs}, which is not installed", code="executor_missing")
    return getattr(import_module(module), cls)(*((chosen,) if len(dtypes) > 1 else ()))


def dtype_for(name: str, dtype: Literal["auto", "float32", "bfloat16"] = "auto") -> str:
    """What the executor `name` will compute in; imports no backend. Raises UnsupportedError as executor_for does."""
    if name not in EXECUTORS:
        raise UnsupportedError(f"executor {name!r} is not one of {', '.join(EXECUTORS)}", param="executor")
    _, _, _, auto, dtypes = EXECUTORS[name]
    chosen = auto if dtype == "auto" else dtype
    if chosen not in dtypes:
        raise UnsupportedError(f"dtype {chosen}: the {name} executor computes in {', '.join(dtypes)}", param="dtype")
    return chosen
