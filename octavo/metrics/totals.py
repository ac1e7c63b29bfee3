"""What an engine has done since it started, as plain numbers that the engine thread adds to."""

from __future__ import annotations

from octavo.metrics.histogram import Histogram, one_two_five
from octavo.metrics.stats import RequestStats, StepStats
from octavo.request import FinishReason

_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_GAP_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_S = (
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_CHOICES = (1, 2, 4, 8, 16, 32, 64, 128)
_REQUEST_TOKENS = one_two_five(1_000_000)


class EngineTotals:
    """A `StatsListener` that adds everything up. Nothing here locks or allocates: it runs once a step.

    Times are seconds, sizes tokens. A request that ended with "error" or "abort" counts in `finished` and in the
    histograms of tokens, but a duration enters a histogram only when both of its ends were reached.
    """

    def __init__(self) -> None:
        self.num_running = 0
        self.num_waiting = 0
        self.num_blocks_used = 0
        self.num_blocks = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.evicted_blocks = 0
        self.copied_blocks = 0
        self.num_blocks_cached = 0
        self.kv_utilization = 0.0
        self.saved_blocks = 0
        self.loaded_blocks = 0
        self.long_prompt_tokens = 0
        self.num_late = 0
        self.limit_s: float | None = None
        self.predicted_s: float | None = None
        self.pressed_steps = 0
        self.judged_requests = 0
        self.requests_within_targets = 0
        self.rejections: dict[str, int] = {}
        self.finished: dict[FinishReason, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}

        self.step_tokens = Histogram(_STEP_TOKENS)
        self.time_to_first_token = Histogram(_FIRST_TOKEN_S)
        self.inter_token_latency = Histogram(_TOKEN_GAP_S)
        self.time_per_output_token = Histogram(_TOKEN_GAP_S)
        self.e2e_latency = Histogram(_REQUEST_S)
        self.queue_time = Histogram(_REQUEST_S)
        self.inference_time = Histogram(_REQUEST_S)
        self.prefill_time = Histogram(_REQUEST_S)
        self.decode_time = Histogram(_REQUEST_S)
        self.request_prompt_tokens = Histogram(_REQUEST_TOKENS)
        self.request_generation_tokens = Histogram(_REQUEST_TOKENS)
        self.request_max_tokens = Histogram(_REQUEST_TOKENS)
        self.request_choices = Histogram(_CHOICES)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache's blocks that requests hold, 0 to 1."""
        return self.num_blocks_used / self.num_blocks if self.num_blocks else 0.0

    def on_step(self, stats: StepStats) -> None:
        self.num_running = stats.num_running
        self.num_waiting = stats.num_waiting
        self.num_blocks_used = stats.num_blocks_used
        self.num_blocks = stats.num_blocks
        self.prompt_tokens += stats.num_prompt_tokens
        self.generation_tokens += stats.num_output_tokens
        self.preemptions += stats.num_preempted
        self.prefix_queries += stats.num_prefix_queries
        self.prefix_hits += stats.num_prefix_hits
        self.evicted_blocks += stats.num_evicted_blocks
        self.copied_blocks += stats.num_copied_blocks
        self.num_blocks_cached = stats.num_blocks_cached
        self.kv_utilization = stats.kv_utilization
        self.saved_blocks = stats.num_blocks_saved
        self.loaded_blocks = stats.num_blocks_loaded
        self.long_prompt_tokens += stats.num_long_tokens
        self.num_late = stats.num_late
        self.limit_s = stats.limit_s
        self.predicted_s = stats.predicted_s
        self.pressed_steps += stats.pressed
        num_tokens = stats.num_prompt_tokens + stats.num_output_tokens
        if num_tokens:
            self.step_tokens.observe(num_tokens)

    def on_token_gap(self, seconds: float, count: int) -> None:
        self.inter_token_latency.observe(seconds, count)

    def on_rejection(self, limit: str) -> None:
        self.rejections[limit] = self.rejections.get(limit, 0) + 1

    def on_request(self, stats: RequestStats) -> None:
        self.finished[stats.finish_reason] += 1
        if stats.within_targets is not None:
            self.judged_requests += 1
            self.requests_within_targets += stats.within_targets
        self.request_generation_tokens.observe(stats.num_output_tokens)
        if stats.num_choices:
            self.request_choices.observe(stats.num_choices)
            self.request_prompt_tokens.observe(stats.num_prompt_tokens)
            self.request_max_tokens.observe(stats.max_tokens)
        self._observe_times(stats)

    def _observe_times(self, stats: RequestStats) -> None:
        times = stats.times
        self.e2e_latency.observe(stats.finished - times.arrival)
        if times.first_scheduled is None:
            return
        self.queue_time.observe(times.first_scheduled - times.arrival)
        if times.first_token is None or times.last_token is None:
            return
        self.time_to_first_token.observe(times.first_token - times.arrival)
        self.prefill_time.observe(times.first_token - times.first_scheduled)
        self.inference_time.observe(times.last_token - times.first_scheduled)
        decode_s = times.last_token - times.first_token
        self.decode_time.observe(decode_s)
        if stats.num_output_tokens > 1:
            self.time_per_output_token.observe(decode_s / (stats.num_output_tokens - 1))
