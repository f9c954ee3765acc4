"""Instructor, with a schema and with a forced call."""

from __future__ import annotations

from functools import partial

import instructor
import openai
from pydantic import BaseModel
from told import MODEL, SCRIPTED, URL, ok, run

MODES = {"schema": instructor.Mode.JSON_SCHEMA} | ({"call": instructor.Mode.TOOLS} if SCRIPTED else {})


class Person(BaseModel):
    name: str
    age: int


def person(name: str) -> None:
    with openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as official:
        client = instructor.from_openai(official, mode=MODES[name])
        asked = {"model": MODEL, "max_tokens": 200, "response_model": Person, "max_retries": 0}
        found = client.chat.completions.create(messages=[{"role": "user", "content": "Who?"}], **asked)
        ok(f"by {name}", isinstance(found, Person), found)


if __name__ == "__main__":
    run({name: partial(person, name) for name in MODES})
