"""The door: every route there is, against everyone who has no key, and every way to pretend to have one."""

import re
from collections import namedtuple

import pytest
from asking import Asked
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.endpoint import Endpoint
from octavo.server.guard import OPEN_PATHS

Door = namedtuple("Door", "app routes client")
KEYS = {
    "no key": {},
    "a wrong key": {"authorization": "Bearer wrong"},
    "no such scheme": {"authorization": "Basic alpha"},
}
KEYS |= {"an empty key": {"authorization": "Bearer "}, "a cookie": {"cookie": "api_key=alpha"}}
KEYS |= {
    "part of a key": {"x-api-key": "alph"},
    "a longer key": {"x-api-key": "alphaa"},
    "a digest": {"x-api-key": "8" * 64},
}
QUERIES = ["", "api_key=alpha", "key=alpha", "authorization=Bearer%20alpha", "x-api-key=alpha", "access_token=alpha"]
HOSTS = [
    "evil.example",
    "evil.example:8737",
    "127.0.0.1.evil.example",
    "localhost@evil.example",
    "localhost/health/live?",
]
HOSTS += [
    "localhost/health/live#",
    "127.0.0.1\\@evil",
    "",
    " ",
    "localhost, evil.example",
    "[::1].evil",
    "0.0.0.0",
    "169.254.169.254",
]
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


def paths_of(routes, prefix=""):
    """(path, route) of every route, with a word in each of its holes."""
    for route in routes:
        if isinstance(route, Mount):
            yield from paths_of(route.routes or [], prefix + route.path)
            yield prefix + route.path + "/x", route
        else:
            assert isinstance(route, Route), f"a kind of route that this test does not know: {route!r}"
            yield prefix + re.sub(r"\{[^}]*\}", "x", route.path), route


@pytest.fixture
def door(llm, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# two keys\nalpha\nbeta\n")
    config = ServerConfig.of(api_key_file=str(keys), environ={"OCTAVO_API_KEY": "gamma"}, wrong_keys_per_minute=0)
    app = create_app(llm, config)
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    return Door(app, list(paths_of(app.routes)), client)


async def ask(door, method, path, headers=(), query="", **body):
    asked = Asked(door.app, method, path, body, headers, query)
    await asked.task
    return asked


def test_only_life_and_static_files_are_open(door):
    assert "/health/live" in OPEN_PATHS
    for path, route in door.routes:
        if path in OPEN_PATHS:
            assert not isinstance(route.endpoint, Endpoint) and route.methods <= {"GET", "HEAD"}, path


@pytest.mark.parametrize("headers", KEYS.values(), ids=KEYS)
async def test_every_route_needs_a_key(door, llm, headers):
    assert len(door.routes) >= 10
    unknown = {"/nothing", "/metrics", "/docs", "/openapi.json", "/admin", "/"}
    for path in {path for path, _ in door.routes} | unknown:
        if path in OPEN_PATHS:
            continue
        for method in METHODS:
            for query in QUERIES:
                asked = await ask(door, method, path, headers, query, api_key="alpha")
                assert asked.status == 401, (method, path, query)
                assert b"a valid API key is needed" in asked.body
    assert llm.opened == 0


@pytest.mark.parametrize("host", HOSTS)
async def test_no_host_name_opens_a_route(door, llm, host):
    """Without a key, 401; with one, 400: the name is not this machine's."""
    for path, _ in door.routes:
        for method in ("GET", "POST"):
            if path not in OPEN_PATHS:
                asked = await ask(door, method, path, {"host": host})
                assert asked.status == 401, (method, path)
            asked = await ask(door, method, path, {"host": host, "x-api-key": "alpha"})
            assert asked.status == 400 and b"is not served here" in asked.body, (method, path)
    assert llm.opened == 0


@pytest.mark.parametrize(
    "path",
    [
        *("//health/live", "/health/live/", "/health/live/../../v1/models", "/health/live;/v1/models", "/HEALTH/LIVE"),
        *("/health/live\x00", "/v1/models#/health/live", "/v1/models?/health/live", "health/live", "/x/../health/live"),
    ],
)
async def test_no_spelling_of_the_open_path_opens_another(door, path):
    assert (await ask(door, "GET", path)).status == 401


def test_foreign_host_names_without_keys(client):
    for host in HOSTS[:3]:
        response = client.get("/v1/models", headers={"host": host})
        assert response.status_code == 400 and response.json()["error"]["code"] == "host_not_allowed"
    for host in ("localhost:1", "127.0.0.1", "[::1]:99", "LOCALHOST"):
        assert client.get("/v1/models", headers={"host": host}).status_code == 200


def test_further_host_names(llm):
    config = ServerConfig.of(environ={}, allowed_hosts=("Api.Example",))
    client = TestClient(create_app(llm, config), base_url="http://127.0.0.1")
    for host, status in (("api.example:443", 200), ("localhost", 200), ("example", 400)):
        assert client.get("/v1/models", headers={"host": host}).status_code == status
    away = ServerConfig.of(host="0.0.0.0", environ={"OCTAVO_API_KEY": "k"})
    assert away.allowed_hosts == ()
    away = ServerConfig.of(host="0.0.0.0", environ={"OCTAVO_API_KEY": "k"}, allowed_hosts=("a",))
    assert "a" in away.allowed_hosts and "b" not in away.allowed_hosts


def test_keys_open_and_part_tenants(door, llm):
    body = {"model": "default", "prompt": "x", "max_tokens": 1}
    for headers in ({"authorization": "Bearer alpha"}, {"x-api-key": "beta"}, {"authorization": "bearer gamma"}):
        assert door.client.post("/v1/completions", json=body, headers=headers).status_code == 200
    tenants, salts = ({call[name] for call in llm.calls} for name in ("tenant", "salt"))
    assert len(tenants) == len(salts) == 3 and not tenants & {"", "alpha", "beta", "gamma"}


def test_request_ids_are_the_servers(client):
    """A client cannot choose the name under which its request runs, is listed and is ended."""
    names = {client.get("/version", headers={"x-request-id": "abc-1"}).headers["x-request-id"] for _ in range(5)}
    assert len(names) == 5 and "abc-1" not in names


@pytest.mark.parametrize("stream", [False, True])
def test_faults_of_ours_say_nothing_of_the_inside(client, llm, monkeypatch, stream):
    whole = llm._delta

    def broken(transcript, step):
        if step > 2:
            raise ValueError("the secret /etc/path of a prompt")
        return whole(transcript, step)

    monkeypatch.setattr(llm, "_delta", broken)
    response = client.post("/v1/completions", json={"model": "default", "prompt": "x", "stream": stream})
    assert "internal_error" in response.text and "secret" not in response.text and "ValueError" not in response.text
    assert response.headers["x-request-id"]
    assert response.status_code == (200 if stream else 500)
