"""The house stands: floors, forbidden imports, sizes of files and functions, names, flags, text."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "octavo"
FLOORS = {
    "errors": 0,
    "types": 0,
    "config": 0,
    "fields": 0,
    "rope_spec": 0,
    "model_experts": 0,
    "model_latent": 0,
    "model_recurrence": 0,
    "model_config": 0,
    "request": 0,
    "form": 0,
    "policy": 1,
    "program": 1,
    "text": 1,
    "grammar": 1,
    "workload": 1,
    "models": 2,
    "sim": 2.5,
    "weights": 2,
    "backends": 3,
    "sampling": 4,
    "drafters": 4.1,
    "runner": 4.2,
    "engine": 5,
    "quantize": 6,
    "server": 6,
    "load": 6,
    "train": 6.1,
    "cli": 7,
}
FLOOR_0_ORDER = [
    *("errors", "types", "fields", "rope_spec", "model_experts", "model_latent", "model_recurrence"),
    *("config", "model_config", "request", "form"),
]
# Indented imports that are allowed, with the reason: the table of optional backends and the start-up of commands.
LATE_IMPORTS = {
    "cli/main.py": "commands are imported once known",
    "cli/screen.py": "rich only where a table is printed",
    "__init__.py": "public names load on first use",
    "backends/__init__.py": "the table of optional backends",
    "weights/fetch.py": "huggingface-hub is an extra",
}
MAX_FILE, MAX_FUNCTION, MAX_NATIVE = 450, 60, 800
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
BANNED = re.compile(r"utils|helper|manager|(^|_)base(_|$)", re.IGNORECASE)

FILES = sorted(SOURCE.rglob("*.py"))
IDS = [str(path.relative_to(SOURCE)) for path in FILES]


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "octavo" and len(parts) > 1 else None


def imports(tree: ast.AST, path: Path) -> list[tuple[str, bool]]:
    """(module, indented) of each import that runs, those under TYPE_CHECKING aside."""
    found = []

    def visit(node: ast.AST, indented: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, indented) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append((node.module or "", indented))
            found.extend((f"{node.module}.{alias.name}", indented) for alias in node.names if node.module == "octavo")
        for child in ast.iter_child_nodes(node):
            visit(child, indented or not isinstance(node, ast.Module))

    visit(tree, False)
    return found


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_imports_go_downwards(path: Path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for module, indented in imports(ast.parse(path.read_text()), path):
        name = str(path.relative_to(SOURCE))
        if indented and module.split(".")[0] not in sys.stdlib_module_names:
            assert name in LATE_IMPORTS, f"{name}: indented import of {module}"
        target = room(module)
        if target is None or target == own or target not in FLOORS:
            continue
        if own in FLOOR_0_ORDER and target in FLOOR_0_ORDER:
            assert FLOOR_0_ORDER.index(target) < FLOOR_0_ORDER.index(own), f"{name} imports {module}"
            continue
        assert FLOORS[target] < FLOORS[own], f"{name} (floor {FLOORS[own]}) imports {module} (floor {FLOORS[target]})"


def test_foresight_needs_no_machine():
    """sim sees floors 0 and 1 and models: no weights, no kernels."""
    for path in (SOURCE / "sim").rglob("*.py"):
        rooms = {room(module) for module, _ in imports(ast.parse(path.read_text()), path)} - {None, "sim", "models"}
        assert all(FLOORS[one] <= 1 for one in rooms), f"{path.name} imports {rooms}"


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_sizes_names_and_docstring(path: Path):
    text, name = path.read_text(), str(path.relative_to(SOURCE))
    lines = text.count("\n")
    assert lines <= MAX_FILE or name in LONG_FILES, f"{name} has {lines} lines"
    tree = ast.parse(text)
    if text.strip():
        assert ast.get_docstring(tree), f"{name} says nothing at its head"
    assert not BANNED.search(path.stem), f"{name}: a file is one noun of the field"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or 0) - node.lineno + 1
            key = f"{name}:{node.name}"
            assert length <= MAX_FUNCTION or key in LONG_FUNCTIONS, f"{key} has {length} lines"
        if isinstance(node, ast.ClassDef):
            assert not re.search(r"Manager|Base$|Helper|Utils", node.name), f"{name}: class {node.name}"


def test_exceptions_to_the_caps_are_used():
    for name in LONG_FILES:
        assert (SOURCE / name).read_text().count("\n") > MAX_FILE, f"{name} is short now: drop its entry"


def test_native_files_are_short():
    for path in sorted((ROOT / "native").rglob("*")):
        if path.is_file():
            lines = path.read_text().count("\n")
            assert lines <= MAX_NATIVE, f"{path.name} has {lines} lines"


@pytest.mark.parametrize("package", ["policy", "program", "models", "workload", "sim"])
def test_rooms_without_torch_and_numpy(package: str):
    """Each module of the room imports while torch and numpy are blocked."""
    modules = [
        "octavo." + ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((SOURCE / package).rglob("*.py"))
    ]
    blocker = "import sys\nfor name in ('torch', 'numpy'): sys.modules[name] = None\n"
    script = blocker + "".join(f"import {module}\n" for module in modules)
    subprocess.run([sys.executable, "-c", script], check=True)


def test_torch_is_named_by_the_reference_and_what_makes_checkpoints_alone():
    for path in FILES:
        modules = [module for module, _ in imports(ast.parse(path.read_text()), path)]
        if not str(path.relative_to(SOURCE)).startswith(("backends/reference", "quantize", "train")):
            assert not any(module.split(".")[0] == "torch" for module in modules), path


@pytest.mark.parametrize("module", ["octavo", "octavo.cli.main", "octavo.request", "octavo.config"])
def test_light_start(module: str):
    """`import octavo` and the command line bring in neither torch, numpy, the kernels nor rich."""
    heavy = "('torch', 'numpy', 'octavo._native', 'rich', 'tokenizers', 'jinja2')"
    script = f"import sys, {module}; bad = [n for n in {heavy} if n in sys.modules]; sys.exit(str(bad) if bad else 0)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_no_family_or_scheme_outside_its_rooms():
    families = re.compile(r"\b(mistral|qwen\w*|smollm3|Q[4568]_[01K])\b")
    allowed = ("models", "weights", "text", "quantize", "model_config.py", "cli/launch.py")  # the last names a program
    for path in FILES:
        name = str(path.relative_to(SOURCE))
        if not name.startswith(allowed):
            assert not families.search(path.read_text()), f"{name} names a family or a scheme"


def test_dangerous_calls_are_absent():
    banned = re.compile(
        r"import (pickle|marshal|shelve)|pickle\.|torch\.load|trust_remote_code=True|(?<![\w.])(eval|exec)\("
    )
    for path in FILES:
        assert not banned.search(path.read_text()), path


def test_public_names():
    import octavo

    assert sorted(octavo.__all__) == ["AsyncLLM", "LLM", "SamplingParams", "Structure", "__version__"]
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
