"""Figures for Prometheus: what the server sees of its answers, and the engine's own sums as they stand."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from redraft.engine.statistics import EngineStatistics
from redraft.types import Completion

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
RATIOS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class EngineFigures:
    """The engine's statistics as of the last scrape; a collector of prometheus-client."""

    def __init__(self) -> None:
        self.latest: EngineStatistics | None = None

    def collect(self) -> Iterator[Metric]:
        now = self.latest
        if now is None:
            return
        pages = now.pages
        gauges = {
            "queue": ("answers that wait", now.waiting),
            "running": ("answers that are written", now.running),
            "pages": ("pages of keys and values", pages.pages),
            "pages_free": ("pages that hold nothing", pages.free),
            "pages_cached": ("pages that are kept for who comes next", pages.cached),
        }
        sums = {
            "forwards": ("forwards of the engine", now.forwards),
            "denoising_forwards": ("steps of answers' blocks", now.denoising_forwards),
            "prefill_tokens": ("prompt tokens that were read", now.prefill_tokens),
            "cached_tokens": ("prompt tokens that were found in the cache", now.cached_tokens),
            "cache_hits": ("whole pages of prompts that were in the cache", pages.matched),
            "cache_misses": ("whole pages of prompts that were not", pages.asked - pages.matched),
            "drafted": ("positions drafted", now.drafted),
            "edits": ("tokens overwritten", now.edits),
            "preempted": ("times that an answer lost its pages", now.preempted),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"redraft_{name}", text, value)
        for name, (text, value) in sums.items():
            yield CounterMetricFamily(f"redraft_{name}", text, value)


class Metrics:
    """One registry for one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine = EngineFigures()
        self.registry.register(self.engine)  # pyright: ignore[reportArgumentType]  # a protocol that isn't declared
        own = self.registry
        self.requests = Counter("redraft_requests", "HTTP requests", ["route", "status"], registry=own)
        self.in_progress = Gauge("redraft_requests_in_progress", "HTTP requests being answered", registry=own)
        self.first_block = Histogram(
            "redraft_first_block_seconds", "from a request to its first frozen block", buckets=SECONDS, registry=own
        )
        self.between_blocks = Histogram(
            "redraft_between_blocks_seconds",
            "from a frozen block to the next of the answer",
            buckets=SECONDS,
            registry=own,
        )
        self.prompt_tokens = Counter("redraft_prompt_tokens", "tokens of prompts", registry=own)
        self.generated_tokens = Counter("redraft_generated_tokens", "tokens of answers", registry=own)
        self.tokens_per_forward = Histogram(
            "redraft_tokens_per_forward", "tokens of an answer by the steps on it", buckets=RATIOS, registry=own
        )
        self.ended = Counter("redraft_answers", "answers by how they ended", ["reason"], registry=own)

    def completed(self, completion: Completion) -> None:
        self.prompt_tokens.inc(len(completion.prompt_token_ids))
        for choice in completion.choices:
            self.generated_tokens.inc(choice.stats.generated_tokens)
            self.ended.labels(choice.finish_reason).inc()
            if choice.stats.forwards:
                self.tokens_per_forward.observe(choice.stats.tokens_per_forward)

    def page(self) -> bytes:
        return generate_latest(self.registry)
