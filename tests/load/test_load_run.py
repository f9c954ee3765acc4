"""The driver against a scripted endpoint: times from the moment a request was due, errors by kind, loops that end."""

import asyncio
import random

import pytest
from fake_endpoint import CLOSE, END, HEAD, Endpoint, answer, chunk, event, whole

from octavo.errors import ResourceError, UsageError
from octavo.load.driver import Driver, Plan
from octavo.load.http import Address, Client
from octavo.load.prose import NUMBER_WORDS, SALT_WORDS, WORDS, Prose
from octavo.load.record import Record
from octavo.load.slo import is_good, parse_slo
from octavo.load.stream import StreamReader
from octavo.load.summary import Distribution, summarize
from octavo.load.target import Target, probe, served_model
from octavo.workload.job import Job


async def records_of(fake, jobs, plan=None, **target):
    client = Client(Address.of(fake.url), {})
    driver = Driver(client, Target(client.address, "fake", **target), Prose("salt"), plan or Plan(grace=5))
    try:
        return await driver.run(jobs)
    finally:
        client.close()


def jobs(*times, input_tokens=8, output_tokens=4):
    return [Job(at, input_tokens, output_tokens) for at in times]


async def test_a_good_answer():
    async with Endpoint(lambda body: answer(4)) as endpoint:
        (record,) = await records_of(endpoint, jobs(0.0))
    assert record.error is None and record.status == 200
    assert (record.pieces, record.counted, record.prompt_tokens) == (4, 4, 7)
    assert 0 <= record.lag <= record.ttft <= record.e2e and len(record.gaps) == 3
    (asked,) = endpoint.asked
    assert asked["model"] == "fake" and asked["max_tokens"] == 4 and asked["ignore_eos"] is True
    assert len(asked["messages"][0]["content"].split()) == 8


async def test_plain_completions_and_further_fields():
    async with Endpoint(lambda body: answer(1)) as endpoint:
        await records_of(endpoint, jobs(0.0), endpoint="completions", exact=False, extra={"temperature": 0})
    (asked,) = endpoint.asked
    assert "prompt" in asked and "messages" not in asked and "ignore_eos" not in asked and asked["temperature"] == 0


def test_events_that_come_in_pieces():
    """Cut anywhere, with either line end; comments are no output."""
    text = b": ping\n\n" + b"".join(
        b'data: {"choices":[{"delta":{"content":"' + word + b'"}}]}\r\n\r\n' for word in (b"a", b"b")
    )
    text += b'data:{"choices":[{"text":"c","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    for cut in range(len(text)):
        record = Record(0, 0.0, 1, 3)
        reader = StreamReader(record, lambda: 1.0)
        reader.head(200, "text/event-stream")
        reader.body(text[:cut])
        reader.body(text[cut:])
        reader.finish()
        assert record.error is None and record.pieces == 3


async def test_no_coordinated_omission():
    """The endpoint answers nobody until the tenth has asked: all are sent, and each has waited since it was due."""
    everybody = asyncio.Event()

    def script(body):
        if len(endpoint.asked) == 10:
            everybody.set()
        return [(everybody, HEAD), *answer(1)[1:]]

    async with Endpoint(script) as endpoint:
        records = await records_of(endpoint, jobs(*(place * 0.02 for place in range(10))))
    assert [record.error for record in records] == [None] * 10 and endpoint.connections == 10
    for record in records:
        assert record.ttft >= records[-1].due - record.due


async def test_times_count_from_when_a_request_was_due():
    """A process that was held up for 0.1 s says so, and makes no answer look faster."""

    class Late(list):
        def __iter__(self):
            for place, job in enumerate(super().__iter__()):
                if place == 1:
                    import time

                    time.sleep(0.1)
                yield job

    async with Endpoint(lambda body: answer(1)) as endpoint:
        records = await records_of(endpoint, Late(jobs(0.0, 0.01, 0.02)))
    assert [record.due for record in records] == [0.0, 0.01, 0.02]
    assert records[1].lag >= 0.08 and records[1].ttft >= records[1].lag
    assert records[2].lag >= 0.07


async def test_a_closed_loop_has_so_many_users():
    open_now, most = 0, 0

    def script(body):
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)

        def end():
            nonlocal open_now
            open_now -= 1

        asyncio.get_running_loop().call_later(0.009, end)
        return answer(2, first=0.005, gap=0.005)

    async with Endpoint(script) as endpoint:
        records = await records_of(endpoint, jobs(*[0.0] * 20), Plan(concurrency=3, requests=10, grace=5))
    assert len(records) == 10 and most == 3 and endpoint.connections == 3
    assert sorted(record.number for record in records) == list(range(10))


async def test_what_ends_the_sending():
    async with Endpoint(lambda body: answer(1)) as endpoint:
        assert len(await records_of(endpoint, jobs(0, 0.01, 0.02), Plan(requests=2))) == 2
        assert len(await records_of(endpoint, jobs(0, 0.01, 5.0), Plan(seconds=0.1))) == 2
        closed = await records_of(endpoint, jobs(*[0.0] * 10**5), Plan(concurrency=2, seconds=0.05))
        assert 2 <= len(closed) < 10**5


async def test_what_does_not_end_is_cut():
    forever = [(0, HEAD + event({"choices": [{"delta": {"content": "x"}}]})), (60, END)]
    silent = [(60, HEAD)]
    async with Endpoint(lambda body: forever if body["max_tokens"] == 9 else silent) as endpoint:
        work = jobs(0.0, output_tokens=9) + jobs(0.0)
        talked, silent_one = await records_of(endpoint, work, Plan(grace=0.05))
        assert (talked.error, silent_one.error) == ("unfinished", "unfinished")
        (slow,) = await records_of(endpoint, jobs(0.0), Plan(timeout=0.05))
    assert slow.error == "timeout" and slow.cut and slow.ttft >= 0.05
    assert silent_one.ttft == silent_one.e2e > 0.04, "it had waited at least so long"
    assert talked.ttft < talked.e2e


async def test_a_signal_ends_a_run():
    async with Endpoint(lambda body: answer(1)) as endpoint:
        client = Client(Address.of(endpoint.url), {})
        driver = Driver(client, Target(client.address, "fake"), Prose("s"), Plan())
        asyncio.get_running_loop().call_later(0.05, driver.stop)
        records = await driver.run(jobs(0, 0.01, 60.0))
        client.close()
    assert [record.error for record in records] == [None, None]


BROKEN = {
    "HTTP 429 rate_limit": whole(429, {"error": {"code": "rate_limit", "message": "slow down"}}),
    "HTTP 500": whole(500, "no"),
    "HTTP 404 not_found": whole(404, {"error": {"type": "not_found", "message": "no such model"}}),
    "error in the stream gone": [(0, HEAD + event({"error": {"code": "gone", "message": "died"}}) + END)],
    "stream broke off": [(0, HEAD + event({"choices": [{"delta": {"content": "x"}}]}) + END)],
    "unreadable event": [(0, HEAD + chunk(b"data: {nonsense\n\ndata: [DONE]\n\n") + END)],
    "not an event stream": whole(200, {"choices": []}),
    "connection broke": [(0, HEAD + event({"choices": []})), (0.001, CLOSE)],
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_errors_by_kind(kind):
    async with Endpoint(lambda body: BROKEN[kind]) as endpoint:
        records = await records_of(endpoint, jobs(0.0, 0.0))
    summary = summarize(records, {})
    assert summary.errors == {kind: 2} and summary.failed == 2 and summary.good == 0
    assert not summary.times["e2e"], "a failure is no fast answer"


async def test_nobody_listens():
    async with Endpoint(lambda body: answer(1)) as endpoint:
        url = endpoint.url
    client = Client(Address.of(url), {})
    with pytest.raises(ResourceError, match="cannot be reached: Connection refused"):
        await served_model(client)
    driver = Driver(client, Target(client.address, "fake"), Prose("s"), Plan())
    (record,) = await driver.run(jobs(0.0))
    assert record.error == "connection refused"


async def test_a_kept_connection_that_the_server_closed_is_no_failure():
    async with Endpoint(lambda body: [*answer(1), (0.02, CLOSE)]) as endpoint:
        records = await records_of(endpoint, jobs(0.0, 0.1, 0.2))
    assert [record.error for record in records] == [None] * 3 and endpoint.connections == 3


async def test_connections_are_used_again():
    async with Endpoint(lambda body: answer(1)) as endpoint:
        await records_of(endpoint, jobs(*(place * 0.01 for place in range(10))))
    assert endpoint.connections < 10


async def test_before_the_run():
    refusing = whole(400, {"error": {"message": "ignore_eos is not known", "code": "unknown_field"}})
    async with Endpoint(lambda body: answer(1)) as endpoint:
        client = Client(Address.of(endpoint.url), {"Authorization": "Bearer k"})
        assert await served_model(client) == "fake"
        target = Target(client.address, "fake")
        await probe(client, target, Job(0, 4, 1), 1, Prose("s"))
        assert endpoint.headers[-1]["authorization"] == "Bearer k"
        endpoint.reply = lambda path, body: refusing
        with pytest.raises(ResourceError, match=r"HTTP 400 unknown_field: ignore_eos is not known"):
            await probe(client, target, Job(0, 4, 1), 1, Prose("s"))
        client.close()


@pytest.mark.parametrize(
    ("url", "made"),
    [
        ("http://127.0.0.1:8737", "http://127.0.0.1:8737/v1"),
        ("127.0.0.1:8737", "http://127.0.0.1:8737/v1"),
        ("https://host", "https://host/v1"),
        ("http://host:8000/api/v2/", "http://host:8000/api/v2"),
        ("http://[::1]:8737/v1", "http://[::1]:8737/v1"),
    ],
)
def test_addresses(url, made):
    assert Address.of(url).url == made


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:x", "http://host?a=b"])
def test_addresses_that_are_none(url):
    with pytest.raises(UsageError):
        Address.of(url)


# ---- text
def test_prompts_have_their_length_and_share_what_they_should():
    prose, other = Prose("a"), Prose("b")
    first = prose.prompt(Job(0, 300, 1, ((5, 200),)), 1).split()
    second = prose.prompt(Job(0, 260, 1, ((5, 200),)), 2).split()
    assert (len(first), len(second)) == (300, 260) and set(first) <= set(WORDS)
    same = next(place for place in range(260) if first[place] != second[place])
    assert same == SALT_WORDS + 200
    assert other.prompt(Job(0, 300, 1, ((5, 200),)), 1).split()[:SALT_WORDS] != first[:SALT_WORDS]
    assert Prose("a").prompt(Job(0, 300, 1, ((5, 200),)), 1).split() == first


def test_no_two_prompts_are_alike_by_accident():
    prose = Prose("a")
    seen = {tuple(prose.prompt(Job(0, 16, 1), number).split()[: SALT_WORDS + NUMBER_WORDS]) for number in range(20000)}
    assert len(seen) == 20000


def test_a_shorter_shared_stretch_is_the_beginning_of_a_longer_one():
    prose = Prose("a")
    long, short = (prose.prompt(Job(0, size, 1, ((1, size),)), 1).split() for size in (500, 100))
    assert long[: len(short)] == short


@pytest.mark.parametrize("tokens", range(1, 9))
def test_the_shortest_prompts(tokens):
    assert Prose("a").prompt(Job(0, tokens, 1, ((1, 3),)), 1).split()


# ---- figures
def test_percentiles():
    times = Distribution.of([4.0, None, 1.0, 3.0, 2.0])
    assert [times.percentile(percent) for percent in (0, 50, 75, 100)] == [1, 2.5, 3.25, 4] and times.mean == 2.5


def test_an_interval_covers_the_true_percentile_as_often_as_it_says():
    rng = random.Random(1)
    hits = 0
    for _ in range(400):
        low, high = Distribution.of(rng.random() for _ in range(200)).interval(90)
        hits += low <= 0.9 <= high
    assert 0.92 <= hits / 400 <= 0.99


async def test_goodput():
    async with Endpoint(lambda body: answer(3, gap=0.05 if body["max_tokens"] == 9 else 0.0)) as endpoint:
        slow, fast = await records_of(endpoint, jobs(0.0, output_tokens=9) + jobs(0.0))
    assert is_good(fast, parse_slo("ttft=5s,gap=40ms")) and not is_good(slow, parse_slo("gap=40ms"))
    assert is_good(slow, parse_slo("ttft=5s,gap=4s,tpot=4s,e2e=4000ms")) and not is_good(slow, parse_slo("tpot=20ms"))
    assert summarize([slow, fast], parse_slo("gap=40ms")).good == 1


@pytest.mark.parametrize("text", ["ttft", "ttft=0", "speed=4", "ttft=4h", "ttft=-1"])
def test_bounds_that_are_none(text):
    with pytest.raises(UsageError):
        parse_slo(text)


async def test_seconds_add_up():
    async with Endpoint(lambda body: answer(4, gap=0.01)) as endpoint:
        records = await records_of(endpoint, jobs(*(place * 0.03 for place in range(35))))
    seconds = summarize(records, {}).timeline
    assert sum(second.sent for second in seconds) == sum(second.ended for second in seconds) == 35
    assert sum(second.tokens for second in seconds) == pytest.approx(140) and seconds[-1].open == 0
