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
    num_long_tokens: int = 0  # of the prompt tokens, those of long prefills
    num_late: int = 0  # requests that wait and will miss their TTFT target
    limit_s: float | None = None  # how long the step was allowed to take; None: no bound
    predicted_s: float | None = None  # how long it was expected to take; None: not known yet
    pressed: bool = False  # a request that waits was about to miss its TTFT target
    num_blocks_cached: int = 0  # held by nobody, but known: given up when others need them
    kv_utilization: float = 0.0  # tokens held over slots of the blocks that requests hold
    num_blocks_saved: int = 0  # to files, since the start
    num_blocks_loaded: int = 0


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One finished answer. What the several answers to a request have in common is counted with the first of them."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    max_tokens: int
    finish_reason: FinishReason
    times: RequestTimes
    finished: float  # seconds of time.monotonic()
    within_targets: bool | None = None  # None: no targets, or aborted
    num_choices: int = 1  # answers that the request has; 0 for all but the first of them


class StatsListener(Protocol):
    """Called on the engine thread; must be quick and must not raise."""

    def on_step(self, stats: StepStats) -> None: ...
    def on_request(self, stats: RequestStats) -> None: ...
    def on_token_gap(self, seconds: float, count: int) -> None:
        """`count` requests got their next token `seconds` after the one before."""

    def on_rejection(self, limit: str) -> None:
        """A request was refused because `limit` was met. May be called from the event loop's thread, too."""
