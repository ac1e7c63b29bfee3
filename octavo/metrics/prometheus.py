"""The totals as Prometheus metrics: `vllm:` names, which dashboards know; `octavo:` where vLLM has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from math import inf

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo.config import BLOCK_TOKENS, EngineConfig
from octavo.metrics.histogram import Histogram
from octavo.metrics.http_totals import HttpTotals
from octavo.metrics.totals import EngineTotals

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
        for name, text, value in self._gauges():
            yield self._with_value(GaugeMetricFamily(name, text, labels=_LABELS), value)
        for name, text, value in self._counters():
            yield self._with_value(CounterMetricFamily(name, text, labels=_LABELS), value)
        yield from self._labelled_counters()
        for name, text, histogram in self._histograms():
            yield _family(name, text, {self._labels: histogram}, _LABELS)
        yield self._cache_config()

    def _with_value(self, family: GaugeMetricFamily | CounterMetricFamily, value: float) -> Metric:
        family.add_metric(self._labels, value)
        return family

    def _gauges(self) -> tuple[tuple[str, str, float], ...]:
        totals = self._totals
        limit_s = inf if totals.limit_s is None else totals.limit_s
        predicted_s = inf if totals.predicted_s is None else totals.predicted_s
        return (
            ("vllm:num_requests_running", "Requests that hold a row of the batch.", totals.num_running),
            ("vllm:num_requests_waiting", "Requests that wait to be scheduled.", totals.num_waiting),
            ("vllm:kv_cache_usage_perc", "Share of KV cache blocks in use; 1 is full.", totals.kv_usage),
            ("octavo:step_limit_seconds", "How long the last step was allowed to take; +Inf: no bound.", limit_s),
            ("octavo:step_predicted_seconds", "How long it was expected to take; +Inf: unknown.", predicted_s),
            ("octavo:kv_cache_blocks_cached", "Blocks nobody holds that are known.", totals.num_blocks_cached),
            (
                "octavo:kv_cache_utilization",
                "Tokens held, over slots of the blocks that requests hold.",
                totals.kv_utilization,
            ),
            ("octavo:num_requests_late", "Waiting requests that will miss the TTFT target.", totals.num_late),
        )

    def _counters(self) -> tuple[tuple[str, str, float], ...]:
        totals = self._totals
        return (
            ("vllm:prompt_tokens", "Prompt tokens computed.", totals.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated.", totals.generation_tokens),
            ("vllm:num_preemptions", "Requests preempted to free KV cache blocks.", totals.preemptions),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", totals.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", totals.prefix_hits),
            ("octavo:kv_cache_evicted_blocks", "Blocks of known prefixes given up for others.", totals.evicted_blocks),
            ("octavo:kv_cache_copied_blocks", "Blocks copied because two requests part in them.", totals.copied_blocks),
            ("octavo:kv_offload_saved_blocks", "Blocks saved to files.", totals.saved_blocks),
            ("octavo:kv_offload_loaded_blocks", "Blocks loaded from files.", totals.loaded_blocks),
            ("octavo:long_prompt_tokens", "Prompt tokens computed of long prefills.", totals.long_prompt_tokens),
            ("octavo:pressed_steps", "Steps while a waiting request was about to miss its TTFT.", totals.pressed_steps),
            ("octavo:requests_judged", "Finished requests that had service targets.", totals.judged_requests),
            ("octavo:requests_within_targets", "Those that met all of them; goodput.", totals.requests_within_targets),
        )

    def _labelled_counters(self) -> Iterator[Metric]:
        totals = self._totals
        ended = "Answers that ended, by how they ended."
        yield self._counter_by("vllm:request_success", ended, "finished_reason", totals.finished.items())
        refused = "Requests refused, by the limit they met."
        yield self._counter_by("vllm:admission_rejections", refused, "reason", totals.rejections.items())

    def _counter_by(self, name: str, text: str, label: str, counts: Iterable[tuple[str, int]]) -> Metric:
        counter = CounterMetricFamily(name, text, labels=(*_LABELS, label))
        for value, count in list(counts):
            counter.add_metric((*self._labels, value), count)
        return counter

    def _histograms(self) -> tuple[tuple[str, str, Histogram], ...]:
        totals = self._totals
        return (
            ("vllm:iteration_tokens_total", "Tokens computed in a step.", totals.step_tokens),
            ("vllm:time_to_first_token_seconds", "From arrival to the first token.", totals.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "From one token to the next.", totals.inter_token_latency),
            (
                "vllm:request_time_per_output_token_seconds",
                "A request's mean time from one token to the next.",
                totals.time_per_output_token,
            ),
            ("vllm:e2e_request_latency_seconds", "From arrival to the end.", totals.e2e_latency),
            ("vllm:request_queue_time_seconds", "From arrival to the first step.", totals.queue_time),
            ("vllm:request_inference_time_seconds", "From the first step to the last token.", totals.inference_time),
            ("vllm:request_prefill_time_seconds", "From the first step to the first token.", totals.prefill_time),
            ("vllm:request_decode_time_seconds", "From the first token to the last.", totals.decode_time),
            ("vllm:request_prompt_tokens", "Prompt tokens of a request.", totals.request_prompt_tokens),
            ("vllm:request_generation_tokens", "Tokens generated for an answer.", totals.request_generation_tokens),
            ("vllm:request_params_max_tokens", "Largest answer a request allowed.", totals.request_max_tokens),
            ("vllm:request_params_n", "Answers to a request, those of best_of included.", totals.request_choices),
        )

    def _cache_config(self) -> Metric:
        config = InfoMetricFamily("vllm:cache_config", "How the KV cache was set up.", labels=_LABELS)
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
