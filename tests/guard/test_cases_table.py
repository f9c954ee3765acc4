"""tests/CASES.md: every test that it names exists, and every case of these rooms is in it; names of test files."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "tests" / "CASES.md").read_text()
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HELD = [
    f"T{n}"
    for n in (1, 2, 4, *range(5, 9), 10, 11, 12, *range(14, 18), 19, 21, 23, 28, 29, *range(31, 35), *range(36, 41))
]


def functions(path):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


def test_every_test_that_is_named_exists():
    nodes = NODE.findall(TEXT)
    assert len(nodes) > 60
    absent = [f"{file}::{name}" for file, name in nodes if name not in functions(ROOT / file)]
    assert not absent, absent


def test_every_case_of_these_rooms_is_held():
    rows = {line.split()[1]: line for line in TEXT.splitlines() if re.match(r"\| T\d+ ", line)}
    assert list(rows) == HELD
    assert all(NODE.search(row) for row in rows.values())


def test_numbered_tests_are_listed():
    """A test named after a case stands in the row of that case."""
    rows = {line.split()[1]: line for line in TEXT.splitlines() if re.match(r"\| T\d+ ", line)}
    for path in sorted((ROOT / "tests").rglob("test_*_cases.py")):
        for name in functions(path):
            for number in re.findall(r"(?<=_)t\d+(?=_)", name):
                assert f"{path.relative_to(ROOT)}::{name}`" in rows[number.upper()], name


def test_files_of_tests_have_names_of_their_own():
    """pytest imports them by their last name alone; two equal ones stop the whole run."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
