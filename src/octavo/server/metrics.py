"""GET /metrics: what Tally and the engines' stats say, in Prometheus' formats; under other engines' names beside ours.

Everything is read when it is asked for. Seconds, tokens, blocks; a label `model` where a server may have several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

import octavo
from octavo.engine.port import STEP_BOUNDS, EngineStats
from octavo.server.models import Models
from octavo.server.tally import Distribution, ModelTally, Tally

Alias = Literal["vllm"]


@dataclass(frozen=True, slots=True)
class _Figure:
    """One number of an engine. kind: a counter only rises."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    read: Callable[[EngineStats], float]


def _used(stats: EngineStats) -> int:
    return stats.blocks_total - stats.blocks_free - stats.blocks_cached


ENGINE = (
    _Figure("octavo_requests_running", "gauge", "Outputs that a step computes", lambda s: s.running),
    _Figure("octavo_requests_waiting", "gauge", "Outputs that wait for a place", lambda s: s.waiting),
    _Figure("octavo_kv_usage", "gauge", "Share of the KV blocks in use, 0 to 1", lambda s: _used(s) / s.blocks_total),
    _Figure("octavo_kv_blocks_used", "gauge", "KV blocks that requests hold", _used),
    _Figure("octavo_kv_blocks_cached", "gauge", "KV blocks free that hold a prefix", lambda s: s.blocks_cached),
    _Figure("octavo_kv_blocks_free", "gauge", "KV blocks free and empty", lambda s: s.blocks_free),
    _Figure("octavo_prompt_tokens", "counter", "Tokens of prompts, cached ones too", lambda s: s.prompt_tokens),
    _Figure("octavo_output_tokens", "counter", "Tokens sampled", lambda s: s.output_tokens),
    _Figure("octavo_cached_tokens", "counter", "Prompt tokens that the prefix cache gave", lambda s: s.cached_tokens),
    _Figure("octavo_preemptions", "counter", "Times that a request gave its blocks back", lambda s: s.preemptions),
    _Figure("octavo_steps", "counter", "Steps of the engine", lambda s: s.steps),
    _Figure("octavo_grammar_masks", "counter", "Masks made for outputs that have a form", lambda s: s.masks),
    _Figure("octavo_grammar_mask_seconds", "counter", "Time that those masks took", lambda s: s.mask_seconds),
    _Figure("octavo_drafts", "counter", "Proposed tokens that a step verified", lambda s: s.drafts),
    _Figure("octavo_drafts_accepted", "counter", "Proposed tokens that were right", lambda s: s.drafts_accepted),
    _Figure("octavo_draft_steps", "counter", "Steps of an output that verified drafts", lambda s: s.draft_steps),
)

REQUESTS: tuple[tuple[str, str, Callable[[ModelTally], Distribution]], ...] = (
    ("octavo_time_to_first_token_seconds", "From the arrival of a request to its first token", lambda t: t.first_token),
    ("octavo_inter_token_seconds", "Between two tokens of one output", lambda t: t.gap),
    ("octavo_request_seconds", "From the arrival of a request to the end of an output", lambda t: t.whole),
    ("octavo_queue_seconds", "In the engine before the first step", lambda t: t.queue),
    ("octavo_prefill_seconds", "From the first step to the first token", lambda t: t.prefill),
    ("octavo_decode_seconds", "From the first token to the last", lambda t: t.decode),
    ("octavo_request_prompt_tokens", "Tokens of a prompt", lambda t: t.prompt_tokens),
    ("octavo_request_output_tokens", "Tokens of an output", lambda t: t.output_tokens),
    ("octavo_grammar_compile_seconds", "To compile a structure, or to find it compiled", lambda t: t.compiling),
)

# Our family -> vLLM's. Labels: model -> model_name, outcome -> finished_reason; `engine` is always "0".
VLLM: Mapping[str, tuple[str, ...]] = {
    "octavo_requests_running": ("vllm:num_requests_running",),
    "octavo_requests_waiting": ("vllm:num_requests_waiting",),
    "octavo_kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "octavo_prompt_tokens": ("vllm:prompt_tokens", "vllm:prefix_cache_queries"),
    "octavo_cached_tokens": ("vllm:prefix_cache_hits",),
    "octavo_output_tokens": ("vllm:generation_tokens",),
    "octavo_preemptions": ("vllm:num_preemptions",),
    "octavo_drafts": ("vllm:spec_decode_num_draft_tokens",),
    "octavo_drafts_accepted": ("vllm:spec_decode_num_accepted_tokens",),
    "octavo_draft_steps": ("vllm:spec_decode_num_drafts",),
    "octavo_drafts_accepted_at": ("vllm:spec_decode_num_accepted_tokens_per_pos",),
    "octavo_requests": ("vllm:request_success",),
    "octavo_time_to_first_token_seconds": ("vllm:time_to_first_token_seconds",),
    "octavo_inter_token_seconds": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "octavo_request_seconds": ("vllm:e2e_request_latency_seconds",),
    "octavo_queue_seconds": ("vllm:request_queue_time_seconds",),
    "octavo_prefill_seconds": ("vllm:request_prefill_time_seconds",),
    "octavo_decode_seconds": ("vllm:request_decode_time_seconds",),
    "octavo_request_prompt_tokens": ("vllm:request_prompt_tokens",),
    "octavo_request_output_tokens": ("vllm:request_generation_tokens",),
}
_LABELS = {"model": "model_name", "outcome": "finished_reason"}


class Metrics(Collector):
    def __init__(self, models: Models, tally: Tally, alias: Alias | None = None) -> None:
        self._models = models
        self._tally = tally
        self._alias = alias
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def page(self, accept: str) -> tuple[bytes, str]:
        """(body, content type), in the format that the client prefers."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind

    def collect(self) -> Iterator[Metric]:
        for family in (*self._engines(), *self._requests(), *self._http()):
            yield family
            if self._alias is not None:
                yield from (_renamed(family, name) for name in VLLM.get(family.name, ()))

    def _engines(self) -> Iterator[Metric]:
        engines = dict(self._models.engines())
        stats = {name: llm.stats() for name, llm in engines.items()}
        info = GaugeMetricFamily("octavo_model_info", "What serves", labels=["model", "version", "numerics", "isa"])
        for name, llm in engines.items():
            info.add_metric([name, octavo.__version__, llm.info.numerics, llm.info.isa], 1.0)
        yield info
        for figure in ENGINE:
            kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
            family = kind(figure.name, figure.text, labels=["model"])
            for name, each in stats.items():
                family.add_metric([name], float(figure.read(each)))
            yield family
        places = CounterMetricFamily(
            "octavo_drafts_accepted_at", "Right ones by position, from 0", labels=["model", "position"]
        )
        for name, each in stats.items():
            for place, count in enumerate(each.accepted_at):
                places.add_metric([name, str(place)], float(count))
        yield places
        steps = HistogramMetricFamily("octavo_step_seconds", "Time of a step, all of it", labels=["model"])
        for name, each in stats.items():
            counts = each.step_counts or (0,) * (len(STEP_BOUNDS) + 1)
            steps.add_metric([name], _buckets(STEP_BOUNDS, counts), each.step_seconds)
        yield steps

    def _requests(self) -> Iterator[Metric]:
        outcomes = CounterMetricFamily("octavo_requests", "Outputs that ended, by reason", labels=["model", "outcome"])
        for name, tally in self._tally.models.items():
            for outcome, count in tally.outcomes.items():
                outcomes.add_metric([name, outcome], count)
        yield outcomes
        for family_name, text, read in REQUESTS:
            family = HistogramMetricFamily(family_name, text, labels=["model"])
            for name, tally in self._tally.models.items():
                found = read(tally)
                family.add_metric([name], _buckets(found.bounds, found.counts), found.total)
            yield family

    def _http(self) -> Iterator[Metric]:
        tally = self._tally
        answers = CounterMetricFamily("octavo_http_requests", "HTTP answers", labels=["route", "method", "status"])
        for (route, method, status), count in tally.http.items():
            answers.add_metric([route, method, str(status)], count)
        yield answers
        seconds = HistogramMetricFamily("octavo_http_request_seconds", "Arrival to last byte", labels=["route"])
        for route, found in tally.http_seconds.items():
            seconds.add_metric([route], _buckets(found.bounds, found.counts), found.total)
        yield seconds
        opened = GaugeMetricFamily("octavo_http_requests_open", "HTTP requests without their last byte")
        opened.add_metric([], tally.http_open)
        yield opened


def _buckets(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus has them."""
    found, below = [], 0
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        below += count
        found.append((str(floatToGoString(bound)), float(below)))  # type: ignore[no-untyped-call]
    return found


def _renamed(family: Metric, name: str) -> Metric:
    renamed = Metric(name, family.documentation, family.type)
    for sample in family.samples:
        labels = {_LABELS.get(label, label): value for label, value in sample.labels.items()} | {"engine": "0"}
        renamed.samples.append(Sample(name + sample.name.removeprefix(family.name), labels, sample.value))
    return renamed
