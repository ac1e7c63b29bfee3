"""What the scheduler tells the engine about a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Started:
    """A request entered for the first time, with `num_cached_tokens` of its prompt known to the KV cache."""

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What `schedule()` decided, in numbers. Recomputed tokens count as prompt tokens.

    `num_long_tokens` are prompt tokens of long prefills. `limit_s` is how long the step may take (None: no bound),
    `predicted_s` how long it should take (None: not known yet), `num_late` how many of those who wait will miss their
    TTFT target, `pressed` whether one that waits was about to.
    """

    num_prompt_tokens: int = 0
    num_preempted: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    num_evicted_blocks: int = 0
    num_copied_blocks: int = 0
    num_long_tokens: int = 0
    limit_s: float | None = None
    predicted_s: float | None = None
    num_late: int = 0
    pressed: bool = False
