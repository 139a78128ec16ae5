"""GET /metrics: counters, gauges and histograms in Prometheus' text format 0.0.4.

Every family is read at the scrape from what the engine and the server count anyway. What vLLM
publishes too stands there a second time under vLLM's name, with the same value.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from quart import Response

from tensorfold.engine.interface import Engine
from tensorfold.serving.counts import Counts, Histogram
from tensorfold.serving.service import Service

UNMATCHED = "unmatched"
"""The path label of requests to no route: their paths are as many as clients like."""


async def metrics(service: Service) -> Response:
    """Answer a scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(service.engine, service.counts))
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)


class _Scrape(Collector):
    def __init__(self, engine: Engine, counts: Counts) -> None:
        self._engine = engine
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Every family."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        yield from _gauge(
            "requests_running", "Replies in a lane.", stats.running, "num_requests_running"
        )
        yield from _gauge(
            "requests_waiting", "Replies that wait.", stats.waiting, "num_requests_waiting"
        )
        lanes = self._engine.limits.lanes
        yield from _gauge("requests_running_max", "Replies that fit in lanes.", lanes)
        about = "Tokens that the replies in lanes have so far."
        yield from _gauge("generation_tokens_running", about, stats.running_tokens)
        if stats.pages_total:
            used = stats.pages_used / stats.pages_total
            about = "Share of the pages for keys and values that replies hold."
            family = GaugeMetricFamily(_name("kv_cache_usage_ratio"), about, labels=["pool"])
            family.add_metric(["pages"], used)
            yield family
            yield from _gauge("kv_cache_usage_perc", about, used)

    def _counters(self) -> Iterator[Metric]:
        stats, counts = self._engine.stats(), self._counts
        prompt = stats.prompt_tokens + stats.cached_tokens
        yield from _counter(
            "prompt_tokens", "Prompt tokens, read or found.", prompt, "prefix_cache_queries"
        )
        yield from _counter(
            "prompt_tokens_cached",
            "Prompt tokens whose keys and values were kept from before.",
            stats.cached_tokens,
            "prefix_cache_hits",
        )
        yield from _counter("generation_tokens", "Tokens drawn.", stats.generated_tokens)
        yield from _counter(
            "mtp_drafted", "Draft tokens checked.", stats.drafted, "spec_decode_num_draft_tokens"
        )
        yield from _counter(
            "mtp_accepted",
            "Draft tokens kept.",
            stats.accepted,
            "spec_decode_num_accepted_tokens",
        )
        yield from _counter(
            "decode_rounds", "Steps that drew for a reply, of finished replies.", counts.rounds
        )
        yield from _counter("cancellations", "Replies ended before their end.", stats.cancelled)
        yield from _counter(
            "preemptions", "Replies that gave up a lane for a while.", stats.preempted
        )
        yield from _counter(
            "client_disconnections",
            "Clients that left before their reply was done.",
            counts.disconnections,
        )
        family = CounterMetricFamily(
            _name("requests"), "HTTP answers by route and status.", labels=["path", "status"]
        )
        for (path, status), count in counts.answers.items():
            family.add_metric([path, str(status)], count)
        yield family

    def _histograms(self) -> Iterator[Metric]:
        counts = self._counts
        for histogram, about, *names in (
            (
                counts.latency,
                "Seconds from a request to the end of its reply.",
                "request_latency_seconds",
                "e2e_request_latency_seconds",
            ),
            (
                counts.first_token,
                "Seconds from a request to the first token of its reply.",
                "time_to_first_token_seconds",
            ),
            (
                counts.prefill,
                "Seconds from a reply's place in a lane to its first token.",
                "request_prefill_seconds",
                "request_prefill_time_seconds",
            ),
            (
                counts.decode,
                "Seconds from a reply's first token to its last.",
                "request_decode_seconds",
                "request_decode_time_seconds",
            ),
            (
                counts.per_token,
                "Seconds for each token after the first, a mean for each reply.",
                "request_time_per_output_token_seconds",
            ),
        ):
            for name in names:
                yield _family(histogram, _name(name), about)


def _name(name: str) -> str:
    return f"tensorfold:{name}"


def _gauge(name: str, about: str, value: float, *mirrors: str) -> Iterator[Metric]:
    for each in (name, *mirrors):
        yield GaugeMetricFamily(_name(each), about, value=value)


def _counter(name: str, about: str, value: float, *mirrors: str) -> Iterator[Metric]:
    """Under its name and vLLM's, each with `_total` after it."""
    for each in (name, *mirrors):
        yield CounterMetricFamily(_name(each), about, value=value)


def _family(histogram: Histogram, name: str, about: str) -> HistogramMetricFamily:
    """Its buckets are cumulative, as the format wants them."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    totals = [float(sum(histogram.counts[: i + 1])) for i in range(len(bounds))]
    buckets = list(zip(bounds, totals, strict=True))
    return HistogramMetricFamily(name, about, buckets=buckets, sum_value=histogram.sum)
