"""Regions of random programs: no two values that are needed at once share memory, and little memory is needed."""

import random

import pytest

from octavo.program.arena import place
from octavo.program.builder import Builder
from octavo.program.encode import encode
from octavo.program.ir import Program


def random_program(seed: int) -> Program:
    """Adds, norms and rotations over values of one width, reading old values as well as new ones."""
    rng = random.Random(seed)
    b = Builder("random")
    b.weight("w", (32,), hf="w", gguf="w")
    b.weight("table", (7, 32), hf="table", gguf="table")
    angles = b.rope_angles("angles", "position", inv_freq=(1.0, 0.5))
    values = [b.embed("v0", "token", "table")]
    for number in range(1, 40):
        name, x, y = f"v{number}", rng.choice(values[-4:]), rng.choice(values)
        match rng.randrange(4):
            case 0:
                b.norm(name, x, "w", eps=1e-5)
            case 1:
                b.rope(name, x, angles, heads=2, rotary=4)
            case _:
                b.add(name, x, y)
        values.append(name)
        if rng.random() < 0.1:
            b.export(name)
    return b.build()


@pytest.mark.parametrize("seed", range(40))
def test_values_that_live_together_lie_apart(seed):
    program = random_program(seed)
    places = place(program).places
    last_use = {name: i for i, op in enumerate(program.ops) for name in op.ins}
    held: dict[int, str] = {}  # region -> the value in it
    for i, op in enumerate(program.ops):
        for name in op.ins:
            if name in places:
                assert held[places[name].region] == name, f"{name} was overwritten before {op.outs[0]} read it"
        for name in op.outs:
            old = held.get(places[name].region)
            assert old is None or program.buffers[old].kind == "value"
            assert old is None or last_use.get(old, -1) <= i
            if old in op.ins:  # in place: element by element only, and from an input that is read once
                assert op.kind in ("add", "rope") and op.ins.count(old) == 1
            held[places[name].region] = name


def test_regions_are_used_again():
    reused = [(len(program.ops), place(program).regions) for program in map(random_program, range(10))]
    assert all(regions < ops * 0.6 for ops, regions in reused)


def test_an_export_has_its_region_to_itself():
    program = random_program(3)
    places = place(program).places
    assert program.exports
    for name in program.exports:
        assert [other for other, at in places.items() if at.region == places[name].region] == [name]


def test_encoding_is_a_function_of_the_program():
    assert encode(random_program(1)) == encode(random_program(1)) != encode(random_program(2))
