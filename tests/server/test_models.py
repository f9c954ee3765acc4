"""Several models: loaded when asked for, unloaded for room or for idleness, never while in use; whatever fails, one
model alone fails."""

import asyncio
import json
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import httpx2
import pytest
from scripted import ScriptedLLM

from octavo.config import EngineConfig
from octavo.errors import BadFileError, ConfigError, EngineError
from octavo.server import fleet as plans
from octavo.server import models as rules
from octavo.server.admin import create_admin
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.failures import HttpError
from octavo.server.models import Models
from octavo.server.seat import ServedModel
from octavo.server.state import ServerState


class Engine:
    """What Models sees of an engine."""

    def __init__(self, log, info):
        self.log, self.info, self.error = log, info, None

    def close(self):
        self.log.append(f"-{self.info.name}")


class Loader:
    """Loads wait while `gate` is shut; `failure` ends them."""

    def __init__(self, info, log):
        self.info, self.log = info, log
        self.gate = threading.Event()
        self.gate.set()
        self.failure = None
        self.engines = []

    def __call__(self, progress):
        progress(1, 2)
        assert self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        self.log.append(f"+{self.info.name}")
        self.engines.append(Engine(self.log, self.info))
        return self.engines[-1]


class Fleet:
    """Models a, b, ... of given needs, and the log of what was loaded (+) and unloaded (-)."""

    def __init__(self, info, needs, **options):
        self.log = []
        self.loaders = [Loader(replace(info, name="abcdef"[place]), self.log) for place in range(len(needs))]
        served = [ServedModel(each.info.name, each, need) for each, need in zip(self.loaders, needs, strict=True)]
        self.models = Models(served, **options)

    async def once(self, name):
        async with self.models.use(name) as llm:
            return llm.info.name

    @asynccontextmanager
    async def held(self, name):
        async with self.models.use(name) as llm:
            yield llm

    async def until(self, log):
        while self.log != log:
            await asyncio.sleep(0.001)


@pytest.fixture
def fleet(tokenizer, template):
    info = ScriptedLLM(tokenizer, template).info
    return lambda *needs, **options: Fleet(info, needs, **options)


async def spin(turns=20):
    for _ in range(turns):
        await asyncio.sleep(0)


async def refusal(awaitable):
    with pytest.raises(HttpError) as refused:
        await awaitable
    return refused.value


async def test_loads_on_demand_and_stays(fleet):
    many = fleet(1, 1, aliases={"fast": "b"})
    await many.models.open_first()
    assert many.log == ["+a"]
    assert [await many.once(name) for name in ("default", "a", "b", "fast")] == ["a", "a", "b", "b"]
    assert many.log == ["+a", "+b"]
    assert [name for name, _ in many.models.engines()] == ["a", "b"]


async def test_unknown_names_list_what_is_served(fleet):
    many = fleet(1, 1, aliases={"fast": "b"})
    refused = await refusal(many.once("c"))
    assert refused.http_status == 404 and "served: a, b, fast (or 'default')" in refused.message


async def test_the_operator_is_refused_in_one_shape(fleet):
    operator = httpx2.ASGITransport(app=create_admin(fleet(1, 1).models, ServerState()))
    async with httpx2.AsyncClient(transport=operator, base_url="http://octavo") as client:
        for method, path, status in (
            ("GET", "/nothing", 404),
            ("GET", "/drain", 405),
            ("POST", "/requests/x/abort", 404),
            ("POST", "/models/c/unload", 404),
        ):
            answer = await client.request(method, path)
            assert answer.status_code == status and answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("aliases", "said"), [({"default": "b"}, "names the first model"), ({"a": "b"}, "given twice")]
)
def test_names_stand_for_one_model(aliases, said):
    configs = [EngineConfig(model=name, served_model_name=name) for name in "ab"]
    with pytest.raises(ConfigError, match=said):
        plans.FleetConfig(aliases=aliases).models(configs)


async def test_concurrent_first_requests_load_once(fleet):
    many = fleet(1, 1)
    many.loaders[1].gate.clear()
    waiting = [asyncio.create_task(many.once("b")) for _ in range(20)]
    await spin()
    assert many.models.seats[1].state == "loading"
    many.loaders[1].gate.set()
    assert await asyncio.gather(*waiting) == ["b"] * 20
    assert many.log == ["+b"]


async def test_the_least_recently_used_makes_room(fleet):
    many = fleet(4, 4, 4, budget=8)
    for name in ("a", "b", "a", "c"):
        await many.once(name)
    assert many.log == ["+a", "+b", "-b", "+c"]
    await many.once("b")
    assert many.log[4:] == ["-a", "+b"]


async def test_as_many_go_as_it_takes(fleet):
    many = fleet(3, 3, 8, budget=10)
    for name in ("a", "b", "c"):
        await many.once(name)
    assert many.log == ["+a", "+b", "-a", "-b", "+c"]


async def test_what_is_in_use_stays(fleet):
    many = fleet(4, 4, budget=4)
    async with many.held("a"):
        second = asyncio.create_task(many.once("b"))
        await spin()
        assert many.log == ["+a"] and many.models.seats[1].state == "loading"
        assert await many.once("a") == "a"
        assert many.log == ["+a"]
    assert await second == "b"
    assert many.log == ["+a", "-a", "+b"]


async def test_a_wait_for_room_has_an_end(fleet):
    many = fleet(4, 4, budget=4, wait_seconds=0.02)
    async with many.held("a"):
        refused = await refusal(many.once("b"))
        assert (refused.http_status, refused.code) == (503, "model_waits") and refused.retry_after >= 1
    await spin()
    assert many.log == ["+a"], "nobody waits for b any more"
    assert await many.once("b") == "b"


class Crowd:
    """Users of one model who overlap, so that somebody always holds it."""

    def __init__(self, many, name):
        self.many, self.name, self.served, self.going = many, name, 0, True

    async def user(self):
        while self.going:
            async with self.many.held(self.name):
                self.served += 1
                for _ in range(4):
                    await asyncio.sleep(0.001)

    async def __aenter__(self):
        self.users = []
        for _ in range(3):
            self.users.append(asyncio.create_task(self.user()))
            await asyncio.sleep(0.0015)
        return self

    async def __aexit__(self, *_):
        self.going = False
        await asyncio.gather(*self.users)


async def test_a_model_that_is_never_idle_lets_others_pass(fleet, monkeypatch):
    monkeypatch.setattr(rules, "PATIENCE_SECONDS", 0.03)
    many = fleet(4, 4, budget=4, wait_seconds=20)
    async with Crowd(many, "a") as crowd:
        assert await many.once("b") == "b"
        assert many.log == ["+a", "-a", "+b"]
        before = crowd.served
        while crowd.served == before:
            await asyncio.sleep(0.001)
    assert many.log[:4] == ["+a", "-a", "+b", "-b"]


async def test_who_stands_back_does_not_wait_for_ever(fleet, monkeypatch):
    monkeypatch.setattr(rules, "PATIENCE_SECONDS", 0.0)
    many = fleet(4, 4, budget=4, wait_seconds=20)
    async with many.held("a"):
        waiting = asyncio.create_task(many.once("b"))
        await spin()
        many.models._wait_seconds = 0.02
        assert (await refusal(many.once("a"))).code == "model_waits"
        waiting.cancel()
        await spin()
        assert await many.once("a") == "a", "nobody waits for b any more"
    assert many.log == ["+a"]


async def test_a_wait_for_a_load_has_an_end_and_the_load_goes_on(fleet):
    many = fleet(4, 4, wait_seconds=0.02)
    many.loaders[1].gate.clear()
    refused = await refusal(many.once("b"))
    assert (refused.http_status, refused.code) == (503, "model_loading") and "50%" in refused.message
    many.loaders[1].gate.set()
    await many.until(["+b"])
    assert await many.once("b") == "b" and many.log == ["+b"]


async def test_a_client_that_leaves_during_a_load_leaves_the_load(fleet):
    many = fleet(4, 4)
    many.loaders[1].gate.clear()
    gone, stays = (asyncio.create_task(many.once("b")) for _ in range(2))
    await spin()
    gone.cancel()
    many.loaders[1].gate.set()
    assert await stays == "b" and many.log == ["+b"]
    assert many.models.seats[1].holders == 0


async def test_a_model_asked_for_while_it_is_unloaded_is_loaded_again(fleet):
    many = fleet(4, 4, budget=4)
    await many.once("a")
    names = await asyncio.gather(*(many.once(name) for name in "babbab"))
    assert names == list("babbab")
    taken = 0
    for entry in many.log:
        taken += 1 if entry.startswith("+") else -1
        assert 0 <= taken <= 1, many.log


async def test_a_load_that_fails_fails_its_requests_alone(fleet, monkeypatch, caplog):
    monkeypatch.setattr(rules, "RETRY_SECONDS", 0.05)
    many = fleet(4, 4, budget=4)
    many.loaders[1].failure = BadFileError("/a/path: spoiled")
    first, second = await asyncio.gather(refusal(many.once("b")), refusal(many.once("b")))
    assert first.http_status == second.http_status == 503 and first.code == "model_failed"
    assert "/a/path" not in first.message and "bad_file: b could not be loaded: /a/path" in caplog.text
    assert many.models.seats[1].state == "failed" and many.models.error is None
    assert await many.once("a") == "a"
    many.loaders[1].failure = None
    await refusal(many.once("b"))  # too early for a new try
    await asyncio.sleep(0.05)
    assert await many.once("b") == "b"
    assert many.log == ["+a", "-a", "+b"], "the failed load took no room"


async def test_an_engine_that_dies_is_loaded_again(fleet, monkeypatch, caplog):
    monkeypatch.setattr(rules, "RETRY_SECONDS", 0.0)
    many = fleet(4, 4, budget=8)
    await many.once("a")
    async with many.held("b") as llm:
        llm.error = EngineError("killed by signal 9", code="engine_dead")
    assert many.models.error is None and many.models.seats[1].state == "failed"
    assert "engine_dead: b: killed by signal 9" in caplog.text
    assert await many.once("b") == "b"
    assert sorted(many.log) == ["+a", "+b", "+b", "-b"]


async def test_an_engine_that_dies_at_once_is_not_loaded_over_and_over(fleet):
    many = fleet(4, 4)
    async with many.held("b") as llm:
        llm.error = EngineError("killed by signal 9", code="engine_dead")
    refused = await refusal(many.once("b"))
    assert refused.code == "model_failed" and 1 <= refused.retry_after <= 5
    await spin()
    assert many.log == ["+b", "-b"]


async def test_the_only_model_is_not_loaded_again(fleet):
    one = fleet(4)
    async with one.held("a") as llm:
        llm.error = EngineError("killed by signal 9", code="engine_dead")
    assert one.models.error is llm.error
    assert (await refusal(one.once("a"))).code == "not_ready" and one.log == ["+a"]


async def test_idle_models_are_unloaded(fleet):
    many = fleet(4, 4, idle_seconds=0.02)
    async with many.held("a"):
        await many.once("b")
        await many.until(["+a", "+b", "-b"])
        assert [seat.state for seat in many.models.seats] == ["ready", "cold"]
    await many.until(["+a", "+b", "-b", "-a"])
    assert await many.once("a") == "a"


async def test_what_nobody_ever_asks_for_is_idle_too(fleet):
    many = fleet(4, 4, idle_seconds=0.02)
    await many.models.open_first()
    await many.until(["+a", "-a"])


async def test_use_puts_the_unloading_off(fleet):
    many = fleet(4, idle_seconds=0.05)
    for _ in range(6):
        await many.once("a")
        await asyncio.sleep(0.02)
    assert many.log == ["+a"]
    await many.until(["+a", "-a"])


async def test_many_random_users_never_exceed_the_budget(fleet):
    """Holds overlap at random; whatever is in use is there, and what is loaded fits."""
    many = fleet(2, 3, 4, 5, budget=9, wait_seconds=20)
    sizes = {loader.info.name: need for loader, need in zip(many.loaders, (2, 3, 4, 5), strict=True)}

    async def user(number):
        for step in range(12):
            name = "abcd"[(number * 7 + step * step) % 4]
            async with many.held(name) as llm:
                for _ in range((number + step) % 4):
                    await asyncio.sleep(0)
                    assert llm.info.name == name and f"-{name}" != many.log[-1]

    await asyncio.gather(*(user(number) for number in range(8)))
    taken = 0
    for entry in many.log:
        taken += sizes[entry[1]] if entry[0] == "+" else -sizes[entry[1]]
        assert taken <= 9, many.log


@pytest.mark.parametrize(
    ("threads", "shared"), [((None,), False), ((2, 2), True), ((1, 1), False), ((None, None), True), ((1, 2), True)]
)
def test_engines_take_turns_where_cores_are_too_few(monkeypatch, threads, shared):
    monkeypatch.setattr(plans.machine, "topology", lambda: SimpleNamespace(threads=2))
    configs = [EngineConfig(model="m", threads=count) for count in threads]
    assert (plans._turns(configs) is not None) == shared


@pytest.fixture
async def served(tokenizer, template):
    """The app over two scripted models, of which the first is loaded."""
    made = []

    def scripted(name):
        llm = ScriptedLLM(tokenizer, template)
        llm.info = replace(llm.info, name=name)
        llm.answer = f"I am {name}."
        made.append(llm)
        return llm

    models = Models(
        [ServedModel(name, lambda progress, name=name: scripted(name), 1, 128) for name in ("a", "b")],
        aliases={"fast": "b"},
    )
    await models.open_first()
    transport = httpx2.ASGITransport(app=create_app(models, ServerConfig(port=0)))
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1"), made


async def test_over_http_each_name_has_its_model(served):
    client, made = served
    answers = {}
    for name in ("default", "a", "b", "fast"):
        body = {"model": name, "messages": [{"role": "user", "content": "Who?"}]}
        answers[name] = (await client.post("/v1/chat/completions", json=body)).json()
    said = {name: answer["choices"][0]["message"]["content"] for name, answer in answers.items()}
    assert said == {"default": "I am a.", "a": "I am a.", "b": "I am b.", "fast": "I am b."}
    assert answers["b"]["model"] == "b" and len(made) == 2


async def test_over_http_the_list_tells_states(served):
    client, _ = served
    listed = (await client.get("/v1/models")).json()["data"]
    assert [(row["id"], row["state"], row["max_model_len"]) for row in listed] == [
        ("a", "ready", 256),
        ("b", "cold", 128),
        ("fast", "cold", 128),
    ]
    assert listed[2]["alias_of"] == "b" and "alias_of" not in listed[0]
    await client.post("/v1/completions", json={"model": "b", "prompt": "x"})
    assert (await client.get("/v1/models/fast")).json()["state"] == "ready"
    health = (await client.get("/health")).json()
    assert health["models"] == {"a": "ready", "b": "ready"} and health["running"] == 0
    missing = await client.post(
        "/v1/completions", content=json.dumps({"model": "c"}), headers={"content-type": "application/json"}
    )
    assert missing.status_code == 404


async def test_over_http_a_load_that_fails_says_when_to_try_again(served, capsys):
    _, made = served

    def broken(progress):
        raise BadFileError("/a/path: spoiled")

    models = Models([ServedModel(made[0].info.name, lambda progress: made[0]), ServedModel("broken", broken)])
    transport = httpx2.ASGITransport(app=create_app(models, ServerConfig(port=0)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        refused = await client.post("/v1/completions", json={"model": "broken", "prompt": "x"})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_failed"
        assert refused.headers["retry-after"] == "5" and "/a/path" not in refused.text
        assert (await client.post("/v1/completions", json={"model": "a", "prompt": "x"})).status_code == 200
        states = {row["id"]: row["state"] for row in (await client.get("/v1/models")).json()["data"]}
        assert states == {"a": "ready", "broken": "failed"}
