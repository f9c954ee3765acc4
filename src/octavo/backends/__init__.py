"""The table of executors by name. A backend is imported when it is asked for, so that none is needed by the others."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from octavo.errors import ResourceError, UnsupportedError

DType = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Backend:
    """module, cls: where the executor is. needs: what must be installed. dtypes: what it computes in, "auto" first."""

    module: str
    cls: str
    needs: str
    dtypes: tuple[str, ...]


EXECUTORS = {
    "native": Backend("octavo.backends.native.executor", "NativeExecutor", "octavo._native", ("bfloat16",)),
    "reference": Backend("octavo.backends.reference.executor", "ReferenceExecutor", "torch", ("float32", "bfloat16")),
}


def dtype_for(name: str, dtype: DType = "auto") -> str:
    """What executor `name` computes in; float32 leaves every value unrounded. Raises UnsupportedError."""
    if name not in EXECUTORS:
        raise UnsupportedError(f"executor {name!r} is not one of {', '.join(EXECUTORS)}", param="executor")
    dtypes = EXECUTORS[name].dtypes
    chosen = dtypes[0] if dtype == "auto" else dtype
    if chosen not in dtypes:
        raise UnsupportedError(f"dtype {chosen}: the {name} executor computes in {', '.join(dtypes)}", param="dtype")
    return chosen


def executor_for(name: str, dtype: DType = "auto") -> Any:
    """The executor `name` (see port.Executor). Raises as dtype_for does; ResourceError without its library."""
    chosen = dtype_for(name, dtype)
    backend = EXECUTORS[name]
    if find_spec(backend.needs) is None:
        raise ResourceError(f"the {name} executor needs {backend.needs}: not installed", code="executor_missing")
    executor = getattr(import_module(backend.module), backend.cls)
    return executor(chosen) if len(backend.dtypes) > 1 else executor()
