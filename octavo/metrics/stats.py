"""What the engine reports about itself, as plain numbers; who listens decides what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.request import FinishReason, RequestTimes


@dataclass(frozen=True, slots=True)
class StepStats:
    """One step of the engine, reported after it."""

    num_prompt_tokens: int  # prompt (or recomputed) tokens computed in this step
    num_output_tokens: int  # tokens sampled in this step
    num_running: int
    num_waiting: int
    num_blocks_used: int
    num_blocks: int
    num_preempted: int
    num_prefix_queries: int  # prompt tokens looked up in the prefix cache by requests that started in this step
    num_prefix_hits: int
    num_evicted_blocks: int
    num_copied_blocks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One finished request."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    max_tokens: int
    finish_reason: FinishReason
    times: RequestTimes
    finished: float  # seconds of time.monotonic()


class StatsListener(Protocol):
    """Called on the engine thread; must be quick and must not raise."""

    def on_step(self, stats: StepStats) -> None: ...
    def on_request(self, stats: RequestStats) -> None: ...
    def on_token_gap(self, seconds: float, count: int) -> None:
        """`count` requests got their next token `seconds` after the one before."""
