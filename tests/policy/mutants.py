"""Automatic mutants of the policy room: how many does the suite notice?

    python -m policy.mutants [--sample N] [--jobs J] [--files blocks,kv] [--seeds S]

Each mutant changes one place of one file: a statement deleted, a comparison flipped or made strict, `and`/`or` and
min/max swapped, plus and minus swapped, a number off by one, a boolean inverted, a test negated; `strict=True` of
zip, an assertion, is left alone. It runs in a forked
child: the unit tests of this folder, then seeds of the simulation; any failure, crash or a run beyond its time kills
it. Survivors are compared with survivors.txt, where each stands with the reason why it may live.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from policy.patch import patched, source_of
from policy.sim import simulate

HERE = Path(__file__).parent
FILES = ("blocks", "kv", "state", "queue", "outcome", "step", "decode", "scheduler")
UNITS = ("blocks", "queue", "outcome", "kv", "state", "scheduler", "decode", "reuse", "drafts_and_faults")
KILLED, SURVIVED = 1, 0
SECONDS = 40

FLIP = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
FLIP |= {ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
EDGE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
SWAP = {ast.Add: ast.Sub, ast.Sub: ast.Add}
NAMES = {"min": "max", "max": "min"}

Change = Callable[[], None]


def deletable(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    return isinstance(node, (ast.Assign, ast.AugAssign, ast.Continue, ast.Return))


def changes(tree: ast.Module) -> Iterator[tuple[int, str, Change]]:
    """(line, what, apply) for every mutant of the tree; `apply` changes the tree in place."""
    asserted = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "strict"}
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        context = statements_of(function)
        for node in ast.walk(function):
            for block in ("body", "orelse"):
                statements = getattr(node, block, None)
                if isinstance(statements, list):
                    yield from deletions(statements)
            if isinstance(node, ast.expr | ast.stmt) and id(node) not in asserted:
                for line, what, change in edits(node):
                    yield line, f"{what} in `{context[id(node)]}`" if what[0] != "`" else what, change


def statements_of(function: ast.FunctionDef) -> dict[int, str]:
    """Node -> the first line of the innermost statement around it."""
    found: dict[int, str] = {}
    for statement in (node for node in ast.walk(function) if isinstance(node, ast.stmt)):
        text = ast.unparse(statement).splitlines()[0]
        found |= {id(node): text for node in ast.walk(statement)}
    return found


def deletions(statements: list[ast.stmt]) -> Iterator[tuple[int, str, Change]]:
    for i, statement in enumerate(statements):
        if deletable(statement):

            def delete(i: int = i) -> None:
                statements[i] = ast.copy_location(ast.Pass(), statements[i])

            yield statement.lineno, f"delete `{ast.unparse(statement)}`", delete


def edits(node: ast.AST) -> Iterator[tuple[int, str, Change]]:
    def edit(owner: object, field: str, value: object) -> Change:
        return lambda: setattr(owner, field, value)

    if isinstance(node, ast.Compare):
        for table in (FLIP, EDGE):
            new = table.get(type(node.ops[0]))
            if new is not None:
                text = f"`{ast.unparse(node)}` with {new.__name__}"
                yield node.lineno, text, edit(node, "ops", [new(), *node.ops[1:]])
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in SWAP:
        new = SWAP[type(node.op)]
        yield node.lineno, f"`{ast.unparse(node)}` with {new.__name__}", edit(node, "op", new())
    elif isinstance(node, ast.BoolOp):
        new = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield node.lineno, f"`{ast.unparse(node)}` with {new.__name__}", edit(node, "op", new())
    elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        value = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield node.lineno, f"{node.value} becomes {value}", edit(node, "value", value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
        name = NAMES[node.func.id]
        yield node.lineno, f"`{ast.unparse(node)}` with {name}", edit(node.func, "id", name)
    elif isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.Compare, ast.BoolOp)):
        negated = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        yield node.lineno, f"not `{ast.unparse(node.test)}`", edit(node, "test", negated)


def mutants(files: tuple[str, ...]) -> list[tuple[str, int, str, int]]:
    """(file, line, what, number within the file). Error texts and annotations are left alone."""
    found = []
    for file in files:
        seen: set[tuple[int, str]] = set()
        for number, (line, what, _) in enumerate(changes(ast.parse(source_of(file)))):
            if (line, what) not in seen:
                seen.add((line, what))
                found.append((file, line, what, number))
    return found


def build(file: str, number: int) -> object:
    tree = copy.deepcopy(ast.parse(source_of(file)))
    next(itertools.islice(changes(tree), number, None))[2]()
    return compile(ast.fix_missing_locations(tree), f"<{file}>", "exec")


def unit_tests() -> None:
    for name in UNITS:
        module = importlib.import_module(f"policy.test_{name}")
        for key, test in vars(module).items():
            if key.startswith("test_"):
                for fields in cases(test):
                    test(**fields)


def cases(test: Callable) -> Iterator[dict[str, object]]:
    """The calls that pytest.mark.parametrize stands for."""
    axes = []
    for mark in getattr(test, "pytestmark", ()):
        names = mark.args[0] if isinstance(mark.args[0], tuple) else (mark.args[0],)
        axes.append([dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in mark.args[1]])
    for choice in itertools.product(*axes):
        yield {name: value for fields in choice for name, value in fields.items()}


def judge(file: str, number: int, seeds: int) -> int:
    """In a child: KILLED or SURVIVED."""
    signal.alarm(SECONDS)
    try:
        with patched(file, build(file, number)):
            unit_tests()
            for seed in range(seeds):
                simulate(seed, 100)
    except BaseException:
        return KILLED
    return SURVIVED


def run(todo: list[tuple[str, int, str, int]], jobs: int, seeds: int) -> list[tuple[str, int, str, int]]:
    """The survivors. A child that was stopped by its alarm is killed."""
    survivors, running, queue = [], {}, list(reversed(todo))
    begin, done = time.perf_counter(), 0
    while queue or running:
        while queue and len(running) < jobs:
            mutant = queue.pop()
            pid = os.fork()
            if pid == 0:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                os._exit(judge(mutant[0], mutant[3], seeds))
            running[pid] = mutant
        pid, status = os.wait()
        mutant = running.pop(pid)
        done += 1
        if os.waitstatus_to_exitcode(status) == SURVIVED:
            survivors.append(mutant)
            print(f"survived: {mutant[0]}.py:{mutant[1]}: {mutant[2]}", flush=True)
        if done % 50 == 0:
            print(f"{done}/{len(todo)} in {time.perf_counter() - begin:.0f} s", flush=True)
    return survivors


def reasons() -> dict[str, str]:
    """survivors.txt: `file: what` -> why it may live."""
    lines = (HERE / "survivors.txt").read_text().splitlines()
    pairs = [line.split(" -- ", 1) for line in lines if line and not line.startswith("#")]
    return dict(pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=0, help="this many, drawn with a fixed seed; 0: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seeds", type=int, default=25, help="seeds of the simulation per mutant")
    parser.add_argument("--files", default=",".join(FILES))
    args = parser.parse_args()
    unit_tests()
    todo = mutants(tuple(args.files.split(",")))
    if args.sample:
        todo = random.Random(0).sample(todo, min(args.sample, len(todo)))
    survivors = run(todo, args.jobs, args.seeds)
    known = reasons()
    unexplained = [m for m in survivors if f"{m[0]}: {m[2]}" not in known]
    killed = len(todo) - len(survivors)
    print(
        f"mutants {len(todo)}, killed {killed} ({100 * killed / len(todo):.1f} %), survivors {len(survivors)}, ", end=""
    )
    print(f"of them without a reason {len(unexplained)}")
    for file, line, what, _ in unexplained:
        print(f"  {file}: {what}   (line {line})")
    return int(killed < 0.9 * len(todo) or bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())
