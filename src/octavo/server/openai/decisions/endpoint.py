"""POST /v1/decisions: predicates, choices and scores about an input, by the probabilities of their labels."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from octavo.server.call import Call, naming
from octavo.server.endpoint import Endpoint
from octavo.server.exchange import Exchange
from octavo.server.failures import HttpError
from octavo.server.openai.decisions.questions import Question, read_questions
from octavo.server.openai.decisions.scoring import Ballot, Scoring, Spent
from octavo.server.openai.fields import IGNORED, Accepted, read
from octavo.server.openai.responses.items import Item, messages_of, read_items
from octavo.text.chat import check_options

# An answer begins where a template lets the model answer at once, instead of thinking first.
AT_ONCE = {"enable_thinking": False, "thinking": False}
ACCEPTED: Accepted = {name: IGNORED[name] for name in ("safety_identifier", "prompt_cache_options")}


class DecisionRequest(msgspec.Struct, kw_only=True):
    model: str
    input: str | list[dict[str, Any]]
    questions: list[dict[str, Any]]
    prompt_cache_key: str = ""
    chat_template_kwargs: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)


class DecisionEndpoint(Endpoint):
    shape = DecisionRequest

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, DecisionRequest, ACCEPTED)
        questions = read_questions(asked.questions)
        check_options(asked.chat_template_kwargs)
        messages = messages_of(read_items(asked.input, _nothing_kept), None)
        with naming(messages="input", prompt="input", max_tokens="input"):
            ballots = await asyncio.to_thread(_ballots, call, messages, questions, AT_ONCE | asked.chat_template_kwargs)
            scoring = Scoring(call, asked.prompt_cache_key)
            found = await scoring.of(ballots)
        answers = [question.answer(likely) for question, likely in zip(questions, found, strict=True)]
        head = {"id": f"dec_{secrets.token_hex(16)}", "object": "decision", "model": call.llm.info.name}
        await exchange.answer(head | {"answers": answers, "usage": _spelled(scoring.spent)})


def _nothing_kept(name: str) -> Item:
    raise HttpError(404, "item_not_found", f"no item {name[:64]!r}: a decision takes its whole input", param="input")


def _ballots(
    call: Call, messages: list[dict[str, Any]], questions: Sequence[Question], options: Mapping[str, Any]
) -> list[Ballot]:
    """The input stands first, for all questions alike, so that it is computed once."""
    encode = call.llm.tokenizer.encode
    known: dict[str, tuple[int, ...]] = {}
    ballots = []
    for question in questions:
        ids = call.llm.encode_chat(_with(messages, question.text), add_generation_prompt=True, **options)
        for label in question.labels:
            known.setdefault(label, tuple(encode(label)))
        ballots.append(Ballot(tuple(ids), tuple(known[label] for label in question.labels)))
    return ballots


def _with(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The question behind the input, in the turn of the user if that is the last."""
    last = messages[-1]
    if last["role"] != "user":
        return [*messages, {"role": "user", "content": text}]
    return [*messages[:-1], last | {"content": f"{last['content']}\n\n{text}" if last["content"] else text}]


def _spelled(spent: Spent) -> dict[str, Any]:
    return {
        "input_tokens": spent.prompt,
        "input_tokens_details": {"cached_tokens": spent.cached, "cache_write_tokens": 0},
        "output_tokens": spent.labels,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.prompt + spent.labels,
    }
