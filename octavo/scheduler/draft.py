"""A step while it is being decided."""

from __future__ import annotations

from octavo.scheduler.outcome import Started, StepCounts
from octavo.scheduler.request_state import RequestState
from octavo.scheduler.step_time import StepSize
from octavo.step import RowStart, RowStep


class Draft:
    """The steps handed out so far; `states` are their requests, in the same order.

    `size` is what the step computes, `num_decoding` how many requests decode in it. `num_partial` counts prompts that
    will still be unfinished after the step, `num_long_partial` the long ones among them. It `admits`
    requests unless memory was too short for those that run.
    """

    __slots__ = (
        "admits",
        "limit_s",
        "num_copied_blocks",
        "num_decoding",
        "num_displaced",
        "num_evicted_before",
        "num_evicted_blocks",
        "num_late",
        "num_long_partial",
        "num_long_tokens",
        "num_partial",
        "num_preempted",
        "num_prompt_tokens",
        "predicted_s",
        "pressed",
        "size",
        "started",
        "starts",
        "states",
        "steps",
    )

    def __init__(self, num_evicted_before: int = 0) -> None:
        self.starts: list[RowStart] = []
        self.started: list[Started] = []
        self.steps: list[RowStep] = []
        self.states: list[RequestState] = []
        self.size = StepSize()
        self.admits = True
        self.num_decoding = 0
        self.num_displaced = 0
        self.num_partial = 0
        self.num_long_partial = 0
        self.num_prompt_tokens = 0
        self.num_long_tokens = 0
        self.num_preempted = 0
        self.num_evicted_before = num_evicted_before
        self.num_evicted_blocks = 0
        self.num_copied_blocks = 0
        self.limit_s: float | None = None
        self.predicted_s: float | None = None
        self.num_late = 0
        self.pressed = False

    def compute(self, state: RequestState, num_tokens: int, new_block_ids: tuple[tuple[int, ...], ...]) -> bool:
        """Gives a request `num_tokens` of the step; whether that is all it has left to compute."""
        position = state.num_computed_tokens
        assert state.row is not None
        samples = position + num_tokens == len(state.token_ids)
        self.steps.append(
            RowStep(
                state.row,
                position,
                num_tokens,
                new_block_ids,
                samples,
                new_token_ids=state.take_new_tokens(),
                scored_positions=state.scored_positions(num_tokens),
            )
        )
        self.states.append(state)
        self.size = self.size.plus(num_tokens, position)
        if position < state.num_start_tokens:
            self.num_prompt_tokens += num_tokens
        return samples

    @property
    def counts(self) -> StepCounts:
        return StepCounts(
            self.num_prompt_tokens,
            self.num_preempted + self.num_displaced,
            num_prefix_queries=sum(start.num_prompt_tokens for start in self.started),
            num_prefix_hits=sum(start.num_cached_tokens for start in self.started),
            num_evicted_blocks=self.num_evicted_blocks,
            num_copied_blocks=self.num_copied_blocks,
            num_long_tokens=self.num_long_tokens,
            limit_s=self.limit_s,
            predicted_s=self.predicted_s,
            num_late=self.num_late,
            pressed=self.pressed,
        )
