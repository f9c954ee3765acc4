"""Spans: one a request that reached a model, its parts inside it, and the client's trace around it."""

import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from octavo.errors import ConfigError
from octavo.server.app import create_app
from octavo.server.spans import NoSpans, OtelSpans, spans

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def sent():
    return InMemorySpanExporter()


@pytest.fixture
def client(llm, config, sent):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(sent))
    with TestClient(create_app(llm, config, traced=OtelSpans(provider)), base_url="http://127.0.0.1") as client:
        yield client


def test_a_request_and_its_parts(ask, client, sent):
    client.headers["traceparent"] = f"00-{TRACE}-{PARENT}-01"
    answer = ask(max_tokens=4, n=2)
    *parts, whole = sent.get_finished_spans()
    assert [part.name for part in parts] == ["queue", "prefill", "decode"] * 2 and whole.name == "chat toy/model"
    assert f"{whole.context.trace_id:032x}" == TRACE and f"{whole.parent.span_id:016x}" == PARENT
    assert all(part.parent.span_id == whole.context.span_id for part in parts)
    assert all(whole.start_time <= part.start_time <= part.end_time <= whole.end_time for part in parts)
    told = whole.attributes
    assert told["gen_ai.usage.output_tokens"] == 8 and told["gen_ai.response.finish_reasons"] == ("length", "length")
    assert told["octavo.request_id"] == answer.headers["x-request-id"] and told["http.response.status_code"] == 200


def test_refusals_are_told_and_reads_are_not(ask, client, sent):
    client.get("/v1/models")
    ask(temperature=-1)
    (refused,) = sent.get_finished_spans()
    assert refused.attributes["error.type"] == "400" and refused.parent is None


def test_without_the_extra_the_flag_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"octavo\[otel\]"), spans(True):
        pass
    with spans(False) as none:
        assert isinstance(none, NoSpans)
