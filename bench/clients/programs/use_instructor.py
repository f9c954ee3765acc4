"""Instructor, with a schema and with a forced call."""

from __future__ import annotations

import instructor
import openai
from pydantic import BaseModel
from told import MODEL, URL, ok


class Person(BaseModel):
    name: str
    age: int


def main() -> None:
    with openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as official:
        for name, mode in (("schema", instructor.Mode.JSON_SCHEMA), ("call", instructor.Mode.TOOLS)):
            client = instructor.from_openai(official, mode=mode)
            asked = {"model": MODEL, "max_tokens": 200, "response_model": Person, "max_retries": 0}
            person = client.chat.completions.create(messages=[{"role": "user", "content": "Who?"}], **asked)
            ok(f"by {name}", isinstance(person, Person), person)


if __name__ == "__main__":
    main()
