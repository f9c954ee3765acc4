"""Texts whose continuation says much again, and ordinary prose whose does not: what drafts are measured on.

A text is a prompt to be continued as it stands, but those of MESSAGES: such a one is a message to be answered. Equal
names and seeds give equal texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from octavo.workload.asked import asked

_THINGS = (
    "order",
    "parcel",
    "ticket",
    "invoice",
    "letter",
    "garden",
    "engine",
    "bridge",
    "window",
    "river",
    "market",
    "teacher",
    "station",
    "harbour",
)
_FIELDS = (
    "name",
    "city",
    "colour",
    "weight",
    "price",
    "owner",
    "status",
    "height",
    "country",
    "number",
)
_NAMES = (
    "Ada",
    "Boris",
    "Clara",
    "Dmitri",
    "Elena",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Karin",
    "Luis",
    "Mina",
    "Noor",
    "Otto",
    "Paula",
)
_CITIES = (
    "Lisbon",
    "Oslo",
    "Prague",
    "Quito",
    "Riga",
    "Seville",
    "Turin",
    "Utrecht",
    "Vienna",
    "Warsaw",
    "Zagreb",
    "Athens",
    "Bergen",
    "Cork",
)
_DEEDS = (
    "walked to the {a} before the sun had risen",
    "wrote a long letter about the {a} to the people of {c}",
    "bought a small {a} and carried it home to {c}",
    "spoke with the {b} for most of the afternoon",
    "found the {a} behind the old {b} near {c}",
    "said that the {b} would be ready by the end of the week",
)


def _code(noise: random.Random) -> str:
    """A file, and the same file with one name changed, begun."""
    things, fields = noise.sample(_THINGS, 3), noise.sample(_FIELDS, 3)
    body = "".join(
        f"def {field}_of_{thing}(items):\n    total = 0\n    for item in items:\n        if item.{field} is not None:\n"
        f"            total += item.{field}\n    return total\n\n\n"
        for thing, field in zip(things, fields, strict=True)
    )
    first = f"def {fields[0]}_of_{things[0]}(items):"
    task = "The file after `total` was renamed to `result` everywhere:"
    return f"The file before:\n\n{body}{task}\n\n{first}\n    result = 0\n"


def _json(noise: random.Random) -> str:
    """Records as lines, then as objects, of which one is there."""
    keys = noise.sample(_FIELDS[2:], 3)
    rows = [(noise.choice(_NAMES), noise.choice(_CITIES), *(noise.choice(_THINGS) for _ in keys)) for _ in range(6)]
    table = "\n".join(", ".join(row) for row in rows)
    names = ("name", "city", *keys)
    first = ",\n".join(f'    "{name}": "{value}"' for name, value in zip(names, rows[0], strict=True))
    return f"{', '.join(names)}\n{table}\n\nThe same as JSON:\n\n[\n  {{\n{first}\n  }},\n  {{\n"


def _tale(noise: random.Random, sentences: int) -> str:
    said = []
    for _ in range(sentences):
        a, b = noise.sample(_THINGS, 2)
        said.append(f"{noise.choice(_NAMES)} {noise.choice(_DEEDS).format(a=a, b=b, c=noise.choice(_CITIES))}.")
    return " ".join(said)


def _summary(noise: random.Random) -> str:
    """A text, and what it said, sentence by sentence, begun with its own words."""
    tale = _tale(noise, 7)
    first = tale.partition(".")[0]
    return f"The report:\n\n{tale}\n\nThe most important sentences of the report, word for word:\n\n1. {first}.\n2."


def _prose(noise: random.Random) -> str:
    a, b = noise.sample(_THINGS, 2)
    name, city = noise.choice(_NAMES), noise.choice(_CITIES)
    return noise.choice(
        (
            f"The history of the {a} in {city} is older than most people think. In the beginning,",
            f"When {name} came back to {city}, nothing was as before. The {a} had gone, and",
            f"There are several reasons why a {a} is more useful than a {b}. First of all,",
            f"{name} had never liked the {a}, but that morning something was different.",
            f"If you travel to {city} for the first time, you should know a few things about the {a}:",
        )
    )


TEXTS: Mapping[str, Callable[[random.Random], str]] = {
    "code": _code,
    "json": _json,
    "summary": _summary,
    "prose": _prose,
    "chat": asked,
}
MESSAGES = frozenset({"chat"})


def text(name: str, seed: int) -> str:
    """`name`: of TEXTS."""
    return TEXTS[name](random.Random(f"{name} {seed}"))
