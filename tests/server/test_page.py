"""The page: what is served, to whom, under which policy. `make page` drives it in a browser."""

import re
from importlib.resources import files

import pytest
from starlette.testclient import TestClient

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.keys import Key
from octavo.server.page import FILES, POLICY

ROOT = files("octavo.server") / "page"
TEXTS = {name: (ROOT / name).read_text() for name, _ in FILES.values()}


@pytest.fixture
def config():
    return ServerConfig(port=0, keys=(Key.of("secret"),))


@pytest.mark.parametrize("path", FILES)
def test_files_need_no_key_and_carry_the_policy(client, path):
    answer = client.get(path)
    name, kind = FILES[path]
    assert (answer.status_code, answer.text, answer.headers["content-type"]) == (200, TEXTS[name], kind)
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get(path, headers={"host": "elsewhere.example"}).status_code == 400
    assert client.post(path).status_code == 405


def test_the_policy_lets_nothing_in_from_elsewhere():
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'" and rules["script-src"] == rules["style-src"] == "'self'"
    assert "unsafe" not in POLICY and "http" not in POLICY and rules["frame-ancestors"] == "'none'"


def test_nothing_beside_the_page_is_open(client):
    for path in ("/page", "/page/page.js", "/page.py", "/v1/models", "/metrics", "/v1/requests"):
        assert client.get(path).status_code == 401


def test_nothing_is_fetched_from_elsewhere():
    """The name spaces of SVG and patterns of addresses aside, no address stands in the files."""
    for name, text in TEXTS.items():
        found = set(re.findall(r"https?://[\w./-]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not found, name
        assert "@import" not in text and "url(" not in text
    assert '<script src="page.js" defer>' in TEXTS["index.html"] and TEXTS["index.html"].count("<script") == 1
    assert not re.search(r"<style|\sstyle=|\son\w+=", TEXTS["index.html"])


def test_text_never_becomes_markup():
    code = TEXTS["page.js"]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser", code
    )
    assert not re.search(r"\beval\(|new Function|setAttribute\(\"on", code)


def test_every_element_that_the_script_names_is_there():
    ids = set(re.findall(r'\bid="([\w-]+)"', TEXTS["index.html"]))
    assert set(re.findall(r'\$\("([\w-]+)"\)', TEXTS["page.js"])) <= ids
    settings = re.search(r"const DEFAULTS = \{(.*?)\};", TEXTS["page.js"])[1]
    assert set(re.findall(r"(\w+):", settings)) <= ids


def test_the_plots_read_metrics_that_exist(llm):
    with TestClient(create_app(llm, ServerConfig(port=0)), base_url="http://127.0.0.1") as client:
        client.post("/v1/completions", json={"model": "toy/model", "prompt": "Hi", "max_tokens": 2})
        page = client.get("/metrics").text
    for name in set(re.findall(r'"(octavo_\w+)"', TEXTS["page.js"])):
        assert re.search(rf"^{name}(_bucket)?\{{", page, re.MULTILINE), name
