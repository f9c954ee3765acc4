"""The header says what the plan says: checked against a slow filling, field by field, on random plans."""

import random

import numpy as np
import pytest

from octavo.program.header import FIELDS, FLAG_NO_WRITE, VERSION, offsets
from octavo.request import KVCopy, Row, StateStep, TableUpdate
from octavo.runner.batch import HeaderWriter


def slow_fields(rows, copies, tables, states, source_rows):
    """Token by token, straight from the meaning of each field."""
    out = {name: [] for name in FIELDS}
    out["row_begin"].append(0)
    for n, row in enumerate(rows):
        begin = out["row_begin"][-1]
        first_draft = len(row.token_ids) - row.num_drafts
        for t, token in enumerate(row.token_ids):
            parent, position = -1, row.start + t
            if row.parents and t >= first_draft:
                parent = begin + row.parents[t - first_draft]
                position = out["position"][parent] + 1
                if parent == len(out["parent"]) - 1 and out["parent"][parent] < 0:
                    parent = -1  # it goes on from the row before it, as a chain's drafts do
            out["token"].append(token)
            out["position"].append(position)
            out["index"].append(row.start + t)
            out["request"].append(n)
            out["adapter"].append(0)
            out["flags"].append(FLAG_NO_WRITE if row.no_write and t == 0 else 0)
            out["parent"].append(parent)
            out["source_row"].append(source_rows[len(out["source_row"])] if source_rows else 0)
            if t >= row.logits_from:
                out["logit_row"].append(begin + t)
        out["slot"].append(row.slot)
        out["context"].append(row.start)
        step = states[n] if states else StateStep()
        out["firm"].append(first_draft if states else len(row.token_ids))
        out["replay"].append(step.replay)
        out["restore"].append(step.restore)
        out["snapshots"] += [word for after, snapshot in step.snapshots for word in (n, after, snapshot)]
        out["row_begin"].append(begin + len(row.token_ids))
    for copy in copies:
        out["copies"] += [copy.slot, copy.source, copy.target]
    for update in tables:
        out["tables"] += [update.slot, update.group, update.first, len(update.blocks), *update.blocks]
    return out


def random_row(rng, slot):
    kind = rng.choice(["decode", "chunk", "chain", "tree", "again"])
    start = rng.randrange(1000)
    if kind == "decode":
        return Row(f"r{slot}", slot, start, (rng.randrange(99),), 0, True)
    if kind == "again":
        return Row(f"r{slot}", slot, start, (rng.randrange(99),), 0, True, no_write=True)
    tokens = tuple(rng.randrange(99) for _ in range(rng.randint(4, 9)))
    if kind == "chunk":
        return Row(f"r{slot}", slot, start, tokens, rng.randint(0, len(tokens)), False)
    drafts = len(tokens) - 2
    parents = ()
    if kind == "tree":
        parents = tuple(rng.randint(1, 1 + d) for d in range(drafts))
    return Row(f"r{slot}", slot, start, tokens, 1, True, num_drafts=drafts, parents=parents)


def random_state(rng):
    taken = tuple((rng.randint(1, 9), rng.randint(1, 9)) for _ in range(rng.choice((0, 0, 1, 2))))
    return StateStep(rng.randrange(4), rng.randrange(3), taken)


@pytest.mark.parametrize("seed", range(30))
def test_header_equals_slow_filling(seed):
    rng = random.Random(seed)
    writer = HeaderWriter(8, 4, 2)  # small, so that it has to grow
    for _ in range(3):  # a writer keeps nothing of the step before
        rows = [random_row(rng, slot) for slot in range(rng.randint(1, 12))]
        copies = [KVCopy(rng.randrange(9), rng.randrange(99), rng.randrange(99)) for _ in range(rng.randrange(3))]
        tables = [TableUpdate(s, 0, rng.randrange(9), tuple(range(rng.randint(1, 5)))) for s in range(rng.randrange(4))]
        tokens = sum(len(row.token_ids) for row in rows)
        sources = [rng.randrange(50) for _ in range(tokens)] if rng.random() < 0.5 else []
        states = [random_state(rng) for _ in rows] if rng.random() < 0.5 else []
        written = writer.write(rows, copies=copies, tables=tables, states=states, source_rows=sources)
        header = written.words()
        expected = slow_fields(rows, copies, tables, states, sources)
        words = len(expected["tables"])
        wanted = sum(row.num_logits for row in rows)
        taken = sum(len(step.snapshots) for step in states)
        assert header[:7].tolist() == [VERSION, tokens, wanted, len(rows), len(copies), taken, words]
        where = offsets(tokens, wanted, len(rows), len(copies), taken, words)
        assert {name: header[b:e].tolist() for name, (b, e) in where.items()} == expected
        assert len(header) == max(e for _, e in where.values())
        assert np.array_equal(np.asarray(written), header)
        assert written.one_each == (tokens == wanted == len(rows))
        assert header.dtype == np.int32 and header.flags.c_contiguous


def test_rows_that_make_no_header_are_refused():
    writer = HeaderWriter(8, 4, 2)
    row = Row("r", 0, 5, (1, 2, 3), 0, True, num_drafts=2, parents=(0, 2))
    with pytest.raises(ValueError, match="draft before its parent"):
        writer.write([row])
    with pytest.raises(ValueError, match="one step of state a row"):
        writer.write([row, row], states=[StateStep()])
    with pytest.raises(ValueError, match="one source row a token"):
        writer.write([Row("r", 0, 5, (1, 2), 0, True)], source_rows=[1])
