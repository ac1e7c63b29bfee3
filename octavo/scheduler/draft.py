"""A step while it is being decided."""

from __future__ import annotations

from octavo.kvcache.block_moves import BlockMoves
from octavo.scheduler.decode_batch import DecodeBatch
from octavo.scheduler.outcome import Started, StepCounts
from octavo.scheduler.request_state import RequestState
from octavo.scheduler.step_time import StepSize
from octavo.step import RowBlocks, RowStart, RowStep, StepPlan


class Draft:
    """What has been handed out so far: a token to each request of the `batch`, for some with `new_blocks`, and `steps`.

    `states` are the requests of `steps`, in the same order. `size` is what the step computes, `num_decoding` how many
    requests decode in it. `num_partial` counts prompts that will still be unfinished after the step,
    `num_long_partial` the long ones among them. It `admits` requests unless memory was too short for those that run.
    With `only_decodes` there is nothing but the batch to it: the next step may be the same.
    """

    __slots__ = (
        "admits",
        "batch",
        "limit_s",
        "new_blocks",
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
        "num_sampling_steps",
        "only_decodes",
        "predicted_s",
        "pressed",
        "size",
        "started",
        "starts",
        "states",
        "steps",
    )

    def __init__(self, batch: DecodeBatch, num_evicted_before: int = 0) -> None:
        self.batch = batch
        self.new_blocks: tuple[RowBlocks, ...] = ()
        self.starts: list[RowStart] = []
        self.started: list[Started] = []
        self.steps: list[RowStep] = []
        self.states: list[RequestState] = []
        self.size = StepSize()
        self.admits = True
        self.num_decoding = 0
        self.num_displaced = 0
        self.num_partial = 0
        self.num_sampling_steps = 0
        self.only_decodes = False
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
        samples = num_tokens == state.num_uncomputed_tokens
        self.num_sampling_steps += samples
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
    def is_empty(self) -> bool:
        """Whether nobody computes anything."""
        return not self.steps and not self.batch.states

    @property
    def num_sampling(self) -> int:
        """How many tokens will be sampled."""
        return len(self.batch.states) + self.num_sampling_steps

    @property
    def request_ids(self) -> list[str]:
        """The requests that compute something, in batch order."""
        return [*self.batch.request_ids, *[state.request_id for state in self.states]]

    def list_batch(self) -> DecodeBatch:
        """Tells of each request of the batch by itself, as it is no longer one; gives the batch that is left."""
        batch, self.batch = self.batch, DecodeBatch(())
        decoding = zip(batch.states, batch.rows, strict=True)
        self.steps = [*(RowStep(row, state.num_computed_tokens, 1, (), True) for state, row in decoding), *self.steps]
        self.states = [*batch.states, *self.states]
        return self.batch

    @property
    def is_bare(self) -> bool:
        """Whether the batch gets its tokens and blocks, and nothing else has happened."""
        return not (self.steps or self.num_preempted or self.num_displaced or self.num_evicted_blocks)

    def plan(self, moves: BlockMoves) -> StepPlan:
        """The step as the backend is told of it."""
        return StepPlan(
            tuple(self.starts),
            tuple(self.steps),
            moves.copies,
            moves.saves,
            moves.loads,
            self.batch.rows,
            self.new_blocks,
        )

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
