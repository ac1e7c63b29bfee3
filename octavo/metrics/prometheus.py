"""The totals as Prometheus metrics, under the names vLLM's dashboards know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo.config import BLOCK_TOKENS, EngineConfig
from octavo.metrics.histogram import Histogram
from octavo.metrics.http_totals import HttpTotals
from octavo.metrics.totals import EngineTotals

_PREFIX = "vllm:"
_OWN_PREFIX = "octavo:"  # what vLLM has no name for
_LABELS = ("model_name", "engine")


class Exposition:
    """The page at /metrics. It owns its registry, so several may live in one process."""

    def __init__(self, engine: EngineTotals, http: HttpTotals, config: EngineConfig, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine, config, model_name))
        self._registry.register(_HttpCollector(http))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the format the Accept header `accept` asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _EngineCollector(Collector):
    def __init__(self, totals: EngineTotals, config: EngineConfig, model_name: str) -> None:
        self._totals = totals
        self._config = config
        self._labels = (model_name, "0")

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._own_counters()
        yield from self._histograms()
        yield self._cache_config()

    def _gauges(self) -> Iterator[Metric]:
        totals = self._totals
        for name, text, value in (
            ("num_requests_running", "Requests that hold a row of the batch.", totals.num_running),
            ("num_requests_waiting", "Requests that wait to be scheduled.", totals.num_waiting),
            ("kv_cache_usage_perc", "Share of KV cache blocks in use; 1 is full.", totals.kv_usage),
        ):
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        unbounded = float("inf")
        limit_s = unbounded if totals.limit_s is None else totals.limit_s
        predicted_s = unbounded if totals.predicted_s is None else totals.predicted_s
        for name, text, value in (
            ("step_limit_seconds", "How long the last step was allowed to take; +Inf: no bound.", limit_s),
            ("step_predicted_seconds", "How long it was expected to take; +Inf: unknown.", predicted_s),
            ("kv_cache_blocks_cached", "Blocks nobody holds that are known.", totals.num_blocks_cached),
            (
                "kv_cache_utilization",
                "Tokens held, over slots of the blocks that requests hold.",
                totals.kv_utilization,
            ),
            ("num_requests_late", "Waiting requests that will miss the TTFT target.", totals.num_late),
        ):
            gauge = GaugeMetricFamily(_OWN_PREFIX + name, text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge

    def _own_counters(self) -> Iterator[Metric]:
        totals = self._totals
        for name, text, value in (
            ("kv_cache_evicted_blocks", "Blocks of known prefixes given up for others.", totals.evicted_blocks),
            ("kv_cache_copied_blocks", "Blocks copied because two requests part in them.", totals.copied_blocks),
            ("kv_offload_saved_blocks", "Blocks saved to files.", totals.saved_blocks),
            ("kv_offload_loaded_blocks", "Blocks loaded from files.", totals.loaded_blocks),
            ("long_prompt_tokens", "Prompt tokens computed of long prefills.", totals.long_prompt_tokens),
            ("pressed_steps", "Steps while a waiting request was about to miss its TTFT.", totals.pressed_steps),
            ("requests_judged", "Finished requests that had service targets.", totals.judged_requests),
            ("requests_within_targets", "Those that met all of them; goodput.", totals.requests_within_targets),
        ):
            counter = CounterMetricFamily(_OWN_PREFIX + name, text, labels=_LABELS)
            counter.add_metric(self._labels, value)
            yield counter
        rejections = CounterMetricFamily(
            _PREFIX + "admission_rejections", "Requests refused, by the limit they met.", labels=(*_LABELS, "reason")
        )
        for limit, count in list(totals.rejections.items()):
            rejections.add_metric((*self._labels, limit), count)
        yield rejections

    def _counters(self) -> Iterator[Metric]:
        totals = self._totals
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens computed.", totals.prompt_tokens),
            ("generation_tokens", "Tokens generated.", totals.generation_tokens),
            ("num_preemptions", "Requests preempted to free KV cache blocks.", totals.preemptions),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", totals.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", totals.prefix_hits),
        ):
            counter = CounterMetricFamily(_PREFIX + name, text, labels=_LABELS)
            counter.add_metric(self._labels, value)
            yield counter
        finished = CounterMetricFamily(
            _PREFIX + "request_success", "Answers that ended, by how they ended.", labels=(*_LABELS, "finished_reason")
        )
        for reason, count in totals.finished.items():
            finished.add_metric((*self._labels, reason), count)
        yield finished

    def _histograms(self) -> Iterator[Metric]:
        totals = self._totals
        for name, text, histogram in (
            ("iteration_tokens_total", "Tokens computed in a step.", totals.step_tokens),
            ("time_to_first_token_seconds", "From arrival to the first token.", totals.time_to_first_token),
            ("inter_token_latency_seconds", "From one token to the next.", totals.inter_token_latency),
            (
                "request_time_per_output_token_seconds",
                "A request's mean time from one token to the next.",
                totals.time_per_output_token,
            ),
            ("e2e_request_latency_seconds", "From arrival to the end.", totals.e2e_latency),
            ("request_queue_time_seconds", "From arrival to the first step.", totals.queue_time),
            ("request_inference_time_seconds", "From the first step to the last token.", totals.inference_time),
            ("request_prefill_time_seconds", "From the first step to the first token.", totals.prefill_time),
            ("request_decode_time_seconds", "From the first token to the last.", totals.decode_time),
            ("request_prompt_tokens", "Prompt tokens of a request.", totals.request_prompt_tokens),
            ("request_generation_tokens", "Tokens generated for an answer.", totals.request_generation_tokens),
            ("request_params_max_tokens", "Largest answer a request allowed.", totals.request_max_tokens),
            ("request_params_n", "Answers to a request, those of best_of included.", totals.request_choices),
        ):
            yield _family(_PREFIX + name, text, {self._labels: histogram}, _LABELS)

    def _cache_config(self) -> Metric:
        config = InfoMetricFamily(_PREFIX + "cache_config", "How the KV cache was set up.", labels=_LABELS)
        values = {name: str(value) for name, value in asdict(self._config).items()}
        values["block_size"] = str(BLOCK_TOKENS)
        values["num_gpu_blocks"] = values["num_blocks"]
        config.add_metric(self._labels, values)
        return config


class _HttpCollector(Collector):
    def __init__(self, totals: HttpTotals) -> None:
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("http_requests", "HTTP requests.", labels=("method", "handler", "status"))
        for (endpoint, status), count in list(self._totals.requests.items()):
            requests.add_metric((endpoint.method, endpoint.path, status), count)
        yield requests
        durations: dict[tuple[str, ...], Histogram] = {
            (endpoint.method, endpoint.path): h for endpoint, h in list(self._totals.durations.items())
        }
        yield _family(
            "http_request_duration_seconds", "Time until the last byte of the answer.", durations, ("method", "handler")
        )
        lag: dict[tuple[str, ...], Histogram] = {(): self._totals.loop_lag}
        yield _family("octavo:event_loop_lag_seconds", "By how much timers of the event loop fire too late.", lag, ())


def _family(
    name: str, text: str, histograms: Mapping[tuple[str, ...], Histogram], label_names: tuple[str, ...]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=label_names)
    for labels, histogram in histograms.items():
        bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, histogram.cumulative(), strict=True)), histogram.total)
    return family
