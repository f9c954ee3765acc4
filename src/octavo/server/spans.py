"""Spans of requests for OpenTelemetry (the extra octavo[otel]): made whole when a request has ended, out of its record.

A client's `traceparent` is their parent. A thread of the SDK sends them to OTEL_EXPORTER_OTLP_ENDPOINT; those that
nobody takes are dropped. Names and attributes are those of the GenAI conventions where there are such. No text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol

import octavo
from octavo.engine.course import Course
from octavo.errors import ConfigError
from octavo.server.records import Record, summary

_OPERATIONS = {"/v1/completions": "text_completion", "/api/generate": "text_completion", "/v1/embeddings": "embeddings"}


class Spans(Protocol):
    def note(self, record: Record, headers: Mapping[str, str]) -> None: ...


class NoSpans:
    def note(self, record: Record, headers: Mapping[str, str]) -> None:
        return


class OtelSpans:
    """provider: of tracers, as the SDK has them."""

    def __init__(self, provider: Any) -> None:
        self._trace: Any = import_module("opentelemetry.trace")
        self._context: Any = import_module(
            "opentelemetry.trace.propagation.tracecontext"
        ).TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("octavo", octavo.__version__)

    def note(self, record: Record, headers: Mapping[str, str]) -> None:
        """Requests that reached a model; the others are counted alone."""
        if not record.model:
            return
        operation = _OPERATIONS.get(record.route, "chat")
        parent = self._tracer.start_span(
            f"{operation} {record.model}",
            context=self._context.extract(headers),
            kind=self._trace.SpanKind.SERVER,
            start_time=_clock(record, record.arrived),
            attributes=_attributes(record, operation),
        )
        if record.status >= 500:
            parent.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        inside = self._trace.set_span_in_context(parent)
        for course in record.courses:
            for name, begin, end in _parts(course):
                span = self._tracer.start_span(
                    name, context=inside, start_time=_clock(record, begin), attributes={"octavo.choice": course.index}
                )
                span.end(_clock(record, end))
        parent.end(_clock(record, record.ended))


@contextlib.contextmanager
def spans(wanted: bool) -> Iterator[Spans]:
    """Sends what is left at its end. Raises ConfigError where the extra is absent."""
    if not wanted:
        yield NoSpans()
        return
    try:
        sdk: Any = import_module("opentelemetry.sdk.trace")
        export: Any = import_module("opentelemetry.sdk.trace.export")
        resources: Any = import_module("opentelemetry.sdk.resources")
        otlp: Any = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        raise ConfigError("--otel needs the extra octavo[otel]: pip install 'octavo[otel]'", param="otel") from None
    provider = sdk.TracerProvider(
        resource=resources.Resource.create({"service.name": "octavo"}), shutdown_on_exit=False
    )
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    try:
        yield OtelSpans(provider)
    finally:
        provider.shutdown()


def _clock(record: Record, moment: float) -> int:
    """Nanoseconds since the epoch: the record's wall clock at its arrival, and monotonic time from there."""
    return int((record.created + moment - record.arrived) * 1e9)


def _parts(course: Course) -> Iterator[tuple[str, float, float]]:
    """(name, begin, end) of what is known to be over."""
    if course.first:
        begun = min(course.begun + course.queued, course.first)
        yield "queue", course.begun, begun
        yield "prefill", begun, course.first
        yield "decode", course.first, course.latest
    elif course.ended:
        yield "queue", course.begun, course.ended


def _attributes(record: Record, operation: str) -> dict[str, Any]:
    known = summary(record)
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": known["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": known["cached_tokens"],
        "gen_ai.usage.output_tokens": known["output_tokens"],
        "gen_ai.response.finish_reasons": [course.finish_reason or "" for course in record.courses],
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "octavo.request_id": record.id,
    }
    if record.status >= 400:
        found["error.type"] = str(record.status)
    return found
