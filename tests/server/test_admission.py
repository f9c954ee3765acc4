"""Who is let in: limits on what waits, shares of keys, and when those who are refused should come back."""

import asyncio

import pytest
from asking import Asked, until
from starlette.testclient import TestClient

from octavo.errors import ConfigError
from octavo.server.admission import LEAST_TOKENS, MEMORY, Admission
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.failures import HttpError
from octavo.server.keys import LIMITS, KeyLimits


def admission(clock, **limits):
    return Admission(ServerConfig(**limits), clock)


def refused(action, *args, code="overloaded"):
    with pytest.raises(HttpError) as refusal:
        action(*args)
    assert refusal.value.http_status == 429 and refusal.value.code == code
    return refusal.value


def test_what_waits_is_limited_and_what_runs_is_not(clock):
    door = admission(clock, max_queued_requests=2)
    tickets = [door.arrive(""), door.arrive("")]
    assert "2 sequences wait, of at most 2" in refused(door.arrive, "").message
    assert (door.sequences, door.requests, door.refused) == (2, 2, 1)
    tickets[0].begun()
    tickets.append(door.arrive(""))
    for ticket in tickets:
        ticket.begun()
        ticket.begun()
    assert (door.sequences, door.requests) == (0, 3)
    for ticket in tickets:
        ticket.__exit__(None, None, None)
    assert door.requests == 0


def test_choices_and_prompts_count(clock):
    door = admission(clock, max_queued_requests=8)
    first, second = door.arrive(""), door.arrive("")
    first.weigh(4, 100)
    refused(second.weigh, 5, 100)
    second.weigh(4, 10)
    assert (door.sequences, door.tokens) == (8, 110)
    with first, second:
        first.begun()
    assert (door.sequences, door.tokens) == (0, 0)


def test_a_request_that_finds_nobody_is_let_in(clock):
    """Whatever it weighs: else it never would be."""
    door = admission(clock, max_queued_requests=4, max_queued_tokens=100)
    with door.arrive("") as alone:
        alone.weigh(32, 5000)
        assert "32 sequences wait" in refused(door.arrive, "").message
    with door.arrive("") as first, door.arrive("") as second:
        first.weigh(1, 60)
        assert "60 prompt tokens wait, and 41 more exceed 100" in refused(second.weigh, 1, 41).message
        second.weigh(1, 40)


def test_no_key_closes_the_door_to_others(clock):
    door = admission(clock, max_queued_requests=10, max_queued_tokens=1000)
    flood = [door.arrive("flood") for _ in range(10)]
    for ticket in flood:
        ticket.weigh(1, 100)
    refused(door.arrive, "flood")
    quiet = [door.arrive("quiet") for _ in range(5)]
    refused(door.arrive, "quiet")  # its even share
    for ticket in quiet:
        ticket.weigh(1, 100)
    refused(quiet[0].weigh, 1, 101)
    assert [len(door._shares), door.sequences, door.tokens] == [2, 15, 1500]
    door.arrive("third")


def test_requests_of_one_key(clock):
    door = admission(clock, key_limits=KeyLimits(max_requests=2))
    first = door.arrive("a")
    first.begun()
    second = door.arrive("a")
    assert "this key may have 2 requests open" in refused(door.arrive, "a", code="rate_limit_exceeded").message
    door.arrive("b")
    with second:
        pass
    door.arrive("a")


def test_retry_after_is_the_backlog_over_the_rate(clock):
    door = admission(clock, max_queued_requests=3, max_queued_tokens=10**7)
    assert door.retry_after() == 1  # nothing is known
    for _ in range(4):  # 500 tokens in two seconds, four times
        with door.arrive("") as ticket:
            ticket.weigh(1, 500)
            clock.now += 2.0
            ticket.begun()
        clock.now += 100.0  # nobody waits: no time that counts
    assert door.rate.tokens == 250.0 and door.rate.sequences == 0.5
    waiting = [door.arrive("") for _ in range(3)]
    waiting[0].weigh(1, 2100)
    assert door.retry_after() == 9  # 2100 / 250
    assert refused(door.arrive, "").retry_after == 9
    waiting[1].weigh(1, 10**6)
    assert door.retry_after() == 60


def test_those_who_leave_are_not_served(clock):
    door = admission(clock)
    with door.arrive("") as ticket:
        ticket.weigh(1, 500)
        clock.now += 1.0
    assert door.rate.tokens == 0 and (door.sequences, door.tokens) == (0, 0)


def test_the_token_limit_follows_the_rate(clock):
    door = admission(clock, backlog_seconds=60.0)
    for rate in (1000, 50):
        for _ in range(3 * int(MEMORY)):
            with door.arrive("") as ticket:
                ticket.weigh(1, rate)
                if rate == 1000 and clock.now < 5:
                    assert door.max_tokens is None  # not certain yet
                clock.now += 1.0
                ticket.begun()
        assert door.max_tokens == pytest.approx(max(LEAST_TOKENS, rate * 60), rel=0.1)


def test_limits_are_checked():
    for name in ("max_queued_requests", "max_queued_tokens", "queue_timeout", "first_token_timeout", "request_timeout"):
        with pytest.raises(ConfigError, match=name):
            ServerConfig.of(environ={}, **{name: 0})
        assert getattr(ServerConfig.of(environ={}, **{name: 3}), name) == 3
    for name in ("max_key_requests", "max_key_queued_tokens", "key_requests_per_minute", "key_tokens_per_minute"):
        with pytest.raises(ConfigError, match=r"of a key: .* must be at least 1, not 0"):
            ServerConfig.of(environ={}, **{name: 0})
        limits = ServerConfig.of(environ={}, **{name: 3}).key_limits
        assert [value for value in (getattr(limits, name) for name in LIMITS) if value] == [3]
    with pytest.raises(ConfigError, match="wrong_keys_per_minute"):
        ServerConfig.of(environ={}, wrong_keys_per_minute=-1)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_server_refuses_with_a_time(llm, stream):
    """And takes more as soon as what waited has begun or gone."""
    app = create_app(llm, ServerConfig(max_queued_requests=2, key_limits=KeyLimits(max_requests=4)))
    body = {"model": "default", "prompt": ["Hi", "Ho"], "max_tokens": 2, "stream": stream}
    llm.mute = asyncio.Event()
    waits = Asked(app, "POST", "/v1/completions", body)
    await until(lambda: llm.opened == 2)
    late = Asked(app, "POST", "/v1/completions", body | {"prompt": "x"})
    await late.task
    assert late.status == 429 and int(late.headers["retry-after"]) >= 1
    assert late.json["error"]["type"] == "rate_limit_error"
    llm.mute.set()
    await waits.task
    again = Asked(app, "POST", "/v1/completions", body)
    await again.task
    assert (waits.status, again.status) == (200, 200)
    assert llm.opened == llm.closed == 4


def test_a_refused_body_is_not_read(llm):
    app = create_app(llm, ServerConfig(max_queued_requests=1))
    client = TestClient(app, base_url="http://127.0.0.1")
    service = app.routes[0].endpoint.service
    with service.admission.arrive(""):
        response = client.post("/v1/completions", content=b"no json", headers={"content-type": "application/json"})
        assert response.status_code == 429 and response.json()["error"]["code"] == "overloaded"
    assert client.post("/v1/completions", json={"model": "default", "prompt": "x"}).status_code == 200
