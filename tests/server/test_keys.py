"""What a key may ask: its line in the file, its limits, what is left of a minute; and wrong keys by address."""

import asyncio

import pytest
from asking import Asked, until
from starlette.testclient import TestClient

from octavo.errors import ConfigError
from octavo.server.admission import Admission
from octavo.server.app import create_app
from octavo.server.attempts import REMEMBERED, Attempts
from octavo.server.bucket import Bucket
from octavo.server.config import ServerConfig
from octavo.server.failures import HttpError
from octavo.server.keys import Key, KeyLimits, key_digest

BODY = {"model": "default", "prompt": "Hi", "max_tokens": 3}


def keys_of(tmp_path, text, **environ):
    file = tmp_path / "keys"
    file.write_text(text)
    return ServerConfig.of(api_key_file=str(file), environ=environ)


class TestFile:
    def test_a_line_says_what_its_key_may(self, tmp_path):
        text = "# ours\nalpha  name=team.a max-requests=8\tmax-queued-tokens=100\n\n  beta requests-per-minute=60\n"
        config = keys_of(tmp_path, text + "gamma tokens-per-minute=5", OCTAVO_API_KEY="delta")
        assert [key.limits for key in config.keys[1:]] == [
            KeyLimits(max_requests=8, max_queued_tokens=100),
            KeyLimits(requests_per_minute=60),
            KeyLimits(tokens_per_minute=5),
        ]
        assert config.tenant("alpha") == "team.a" and config.tenant("alpha name=team.a") is None
        assert config.tenant("beta") == key_digest("beta").hex()[:16]
        assert config.tenant("delta") and config.tenant("") is None
        assert "alpha" not in repr(config)

    def test_what_all_keys_may_is_what_a_line_does_not_say(self, tmp_path):
        (tmp_path / "keys").write_text("alpha max-requests=2\nbeta")
        config = ServerConfig.of(
            api_key_file=str(tmp_path / "keys"), environ={}, max_key_requests=7, key_tokens_per_minute=9
        )
        alpha, beta = (config.limits(config.tenant(key)) for key in ("alpha", "beta"))
        assert alpha == KeyLimits(max_requests=2, tokens_per_minute=9)
        assert beta == config.limits("") == KeyLimits(max_requests=7, tokens_per_minute=9)

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("secret more", "line 2: after the key come name, max-requests, "),
            ("secret max_words=3", "line 2: after the key"),
            ("secret max-requests=", "line 2: max-requests is a whole number"),
            ("secret max-requests=-1", "line 2: max-requests is a whole number"),
            ("secret max-requests=\uff13", "line 2: max-requests is a whole number"),
            ("secret max-requests=0", "line 2: max-requests must be at least 1, not 0"),
            ("secret name=a/b", "line 2: a name is up to 64 letters"),
            ("secret name=", "line 2: a name is"),
            ("secret name=one", "two lines have the same key or name: one"),
            ("first", "two lines have the same key or name"),
        ],
    )
    def test_mistakes_are_named_and_keys_are_not(self, tmp_path, line, said):
        with pytest.raises(ConfigError, match=said) as refused:
            keys_of(tmp_path, f"first name=one\n{line}\n")
        assert "secret" not in refused.value.message and refused.value.exit_code == 78

    def test_a_key_of_the_environment_has_no_second_line(self, tmp_path):
        config = keys_of(tmp_path, "alpha max-requests=1\nbeta", OCTAVO_API_KEY="alpha")
        assert len(config.keys) == 2


def test_a_bucket_fills_evenly_and_no_further_than_a_minute(clock):
    bucket = Bucket(30, clock)
    assert bucket.wait(30) == 0
    bucket.take(30)
    assert [bucket.wait(amount) for amount in (1, 2, 30, 1000)] == [2, 4, 60, 60]
    clock.now += 4
    assert bucket.wait(2) == 0 and bucket.wait(3) == 2
    bucket.take(62)  # more than is there
    assert bucket.wait(1) == 122
    clock.now += 1e6
    assert bucket.wait(30) == 0
    bucket.take(30)
    assert bucket.wait(1) == 2


def refused(door, tenant, said):
    with pytest.raises(HttpError, match=said) as refusal:
        door.arrive(tenant)
    assert (refusal.value.http_status, refusal.value.code) == (429, "rate_limit_exceeded")
    return refusal.value.retry_after


class TestLimits:
    def door(self, clock, **limits):
        key = Key(b"", "a", KeyLimits(**limits))
        return Admission(ServerConfig(keys=(key, Key(b"", "b"))), clock)

    def test_requests_of_a_minute(self, clock):
        door = self.door(clock, requests_per_minute=2)
        for _ in range(2):
            with door.arrive("a"):
                pass
        assert refused(door, "a", "spent what it may in a minute; try again in 30 s") == 30
        with door.arrive("b"), door.arrive(""):
            clock.now += 30
        with door.arrive("a"), door.arrive("a", goes_on=True):  # the same request, in the background
            assert refused(door, "a", "minute") == 30

    def test_a_refused_request_costs_nothing(self, clock):
        door = self.door(clock, requests_per_minute=2, max_requests=1)
        with door.arrive("a"):
            for _ in range(5):
                refused(door, "a", "may have 1 requests open")
        door.arrive("a")

    def test_tokens_of_a_minute_are_prompts_and_outputs(self, clock):
        door = self.door(clock, tokens_per_minute=600)
        with door.arrive("a") as ticket:
            ticket.weigh(1, 500)
            ticket.begun()
            for _ in range(60):
                ticket.spent(10)
        assert refused(door, "a", "minute") == 51  # 501 of them, at 10 a second
        clock.now += 51
        with door.arrive("a") as ticket:
            ticket.weigh(1, 10**6)  # whatever it weighs: else it never would be

    def test_prompts_that_wait(self, clock):
        door = self.door(clock, max_queued_tokens=100)
        with door.arrive("a") as first, door.arrive("a") as second, door.arrive("b") as other:
            first.weigh(1, 5000)  # alone
            other.weigh(1, 5000)
            with pytest.raises(HttpError, match="5000 prompt tokens of this key wait, and 1 more exceed 100") as said:
                second.weigh(1, 1)
            assert said.value.code == "rate_limit_exceeded"
            first.begun()
            second.weigh(1, 100)

    def test_over_http(self, llm):
        keys = Key.of("one", "one", KeyLimits(tokens_per_minute=20)), Key.of("two")
        with TestClient(create_app(llm, ServerConfig(keys=keys)), base_url="http://127.0.0.1") as client:

            def ask(key, path="/v1/completions", **more):
                return client.post(path, json=BODY | more, headers={"x-api-key": key})

            assert ask("one", max_tokens=30).status_code == 200
            late = ask("one")
            assert late.status_code == 429 and int(late.headers["retry-after"]) > 1
            assert late.json()["error"]["code"] == "rate_limit_exceeded"
            assert late.json()["error"]["type"] == "rate_limit_error"
            assert client.get("/v1/models", headers={"x-api-key": "one"}).status_code == 200
            assert ask("two").status_code == 200
            spoken = client.post("/v1/messages", json={}, headers={"x-api-key": "one"})
            assert spoken.status_code == 429 and spoken.json()["error"]["type"] == "rate_limit_error"


class TestWrongKeys:
    def test_an_address_is_believed_no_new_key_for_a_while(self, clock):
        attempts = Attempts(20, clock)
        assert attempts.wait("192.0.2.1", "known") == 0
        assert [attempts.wait("192.0.2.1", None) for _ in range(20)] == [0] * 20
        assert attempts.wait("192.0.2.1", None) == 3
        assert attempts.wait("192.0.2.1", "guessed") == 3
        assert attempts.wait("192.0.2.1", "known") == attempts.wait("192.0.2.2", "guessed") == 0
        clock.now += 3
        assert attempts.wait("192.0.2.1", "guessed") == 0
        clock.now += 600
        assert [attempts.wait("192.0.2.1", None) for _ in range(21)] == [0] * 20 + [3]

    def test_a_client_of_ipv6_is_one_wherever_in_its_network(self, clock):
        attempts = Attempts(2, clock)
        waits = [attempts.wait(f"2001:db8::{place:x}", None) for place in range(3)]
        assert waits == [0, 0, 30] and attempts.wait("2001:db8:0:1::1", None) == 0

    def test_what_is_remembered_is_bounded(self, clock):
        attempts = Attempts(1, clock)
        for place in range(REMEMBERED + 100):
            attempts.wait(f"a{place}", None)
            attempts.wait(f"b{place}", "owner")
        assert len(attempts._wrong) == len(attempts._right) == REMEMBERED

    def test_none_are_counted_where_that_is_said(self, clock):
        attempts = Attempts(0, clock)
        assert not any(attempts.wait("192.0.2.1", None) for _ in range(1000)) and not attempts._wrong

    def test_over_http(self, llm):
        config = ServerConfig(keys=(Key.of("right"), Key.of("other")), wrong_keys_per_minute=3)
        client = TestClient(create_app(llm, config), base_url="http://127.0.0.1")

        def ask(key):
            return client.get("/v1/models", headers={"x-api-key": key} if key else {})

        assert ask("right").status_code == 200
        assert [ask("wrong").status_code for _ in range(5)] == [401] * 3 + [429] * 2
        refused = ask("other")
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "too_many_wrong_keys"
        assert int(refused.headers["retry-after"]) == 20
        assert ask("right").status_code == 200 and ask("").status_code == 401
        assert client.get("/health/live").status_code == 200


class TestDeadlines:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        ("limits", "status", "code"),
        [
            ({"queue_timeout": 0.05}, 503, "queue_timeout"),
            ({"first_token_timeout": 0.05}, 504, "first_token_timeout"),
            ({"request_timeout": 0.05}, 504, "request_timeout"),
        ],
    )
    async def test_of_one_that_does_not_begin(self, llm, stream, limits, status, code):
        llm.mute = asyncio.Event()
        asked = Asked(create_app(llm, ServerConfig(**limits)), "POST", "/v1/completions", BODY | {"stream": stream})
        await asked.task
        if stream:
            assert asked.status == 200 and code.encode() in asked.body and b"[DONE]" not in asked.body
        else:
            assert asked.status == status and asked.json["error"]["code"] == code
            assert asked.json["error"]["type"] == "server_error" and ("retry-after" in asked.headers) == (status == 503)
        assert llm.opened == llm.closed == 1

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses"])
    async def test_of_a_stream_that_does_not_end(self, llm, path):
        llm.hold = True
        app = create_app(llm, ServerConfig(queue_timeout=20, first_token_timeout=20, request_timeout=0.3))
        body = {"model": "default", "stream": True} | ({"max_tokens": 9} if path == "/v1/messages" else {})
        body |= {"input": "Hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "Hi"}]}
        asked = Asked(app, "POST", path, body)
        await asked.task
        assert asked.status == 200 and b"did not end within 0.3 s" in asked.body
        assert llm.opened == llm.closed == 1

    async def test_of_one_that_is_in_time(self, llm):
        app = create_app(llm, ServerConfig(queue_timeout=60, first_token_timeout=60, request_timeout=60))
        before = len(asyncio.get_running_loop()._scheduled)
        asked = Asked(app, "POST", "/v1/completions", BODY)
        await asked.task
        assert asked.status == 200
        live = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]
        assert len(live) <= before

    async def test_a_prompt_that_was_begun_waits_no_longer(self, llm):
        """Its first output may take longer: that has its own bound."""
        llm.mute = asyncio.Event()
        app = create_app(llm, ServerConfig(queue_timeout=0.05))
        asked = Asked(app, "POST", "/v1/completions", BODY)
        await until(lambda: llm.opened == 1)
        records = app.routes[0].endpoint.service.observer.records
        (record,) = records._open.values()
        for course in record.courses:
            course.computed = 1
        await asyncio.sleep(0.15)
        assert not asked.task.done()
        llm.mute.set()
        await asked.task
        assert asked.status == 200
