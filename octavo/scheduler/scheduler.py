"""Who computes how many tokens in the next step.

There are no phases. Every request has `num_tokens` known tokens of which `num_computed_tokens` have been computed, and
each step hands out its token budget: to the running requests, then to waiting ones, first come first served. A request
whose last known token is computed in a step gets a new one at its end.

Two facts follow from first come first served and hold after every call: the running requests are exactly the oldest
ones, in order of arrival, and of them only the youngest, and those that were given tokens by `extend`, can have more
than one token left to compute. So those that decode are always served before the one that prefills, and the one to
preempt is always the last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from octavo.config import BLOCK_TOKENS
from octavo.errors import ContextLengthError, EngineError, InvalidValueError
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.block_table import BlockTable, blocks_for
from octavo.request import Request
from octavo.scheduler.request_state import NewToken, RequestState
from octavo.step import RowStart, RowStep, ScoredTokens, StepOutput, StepPlan, TokenLogprobs


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What `schedule()` decided, in numbers. Recomputed tokens count as prompt tokens."""

    num_prompt_tokens: int = 0
    num_preempted: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0


class _Draft:
    """A step while it is being decided. `states` are the requests of `steps`, in the same order."""

    __slots__ = ("budget", "num_preempted", "num_prompt_tokens", "started_ids", "starts", "states", "steps")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.starts: list[RowStart] = []
        self.started_ids: list[str] = []
        self.steps: list[RowStep] = []
        self.states: list[RequestState] = []
        self.num_prompt_tokens = 0
        self.num_preempted = 0


class Scheduler:
    """Requests from arrival to end: waiting, running in a row, preempted back to waiting, gone.

    Owns the rows and, through the pool, the blocks of its requests. Knows neither text nor tensors: the engine tells it
    when a request has ended. `schedule()` and `update()` alternate; `add` and `remove` may come at any time between.
    """

    def __init__(self, pool: BlockPool, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._pool = pool
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        # Kept free when a request enters beside others, so that these can grow for a while before one must leave.
        self._num_headroom_blocks = max(1, pool.num_blocks // 100)
        self._waiting: OrderedDict[str, RequestState] = OrderedDict()
        self._running: dict[str, RequestState] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._draft = _Draft(0)

    # ---- requests come and go

    def add(self, request: Request) -> None:
        """Puts a request at the end of the waiting line.

        Raises `ContextLengthError` if it could not run even alone, `InvalidValueError` if its id is taken.
        """
        if request.request_id in self:
            raise InvalidValueError(f"request_id {request.request_id!r} is in use", param="request_id")
        longest = len(request.prompt_token_ids) + (request.sampling.max_tokens or 1)
        capacity = self._pool.num_blocks * BLOCK_TOKENS
        if longest > capacity:
            raise ContextLengthError(
                f"the request may grow to {longest} tokens, the whole KV cache holds {capacity}", param="max_tokens"
            )
        self._waiting[request.request_id] = RequestState(request, BlockTable(self._pool))

    def remove(self, request_id: str) -> bool:
        """Takes a request out, finished or aborted: its row and blocks are free at once. False if it is not here."""
        if self._waiting.pop(request_id, None) is not None:
            return True
        state = self._running.pop(request_id, None)
        if state is None:
            return False
        self._vacate(state)
        return True

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._running or request_id in self._waiting

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_requests(self) -> bool:
        return bool(self._running or self._waiting)

    # ---- a step

    def schedule(self) -> StepPlan:
        """Decides the next step."""
        draft = self._draft = _Draft(self._max_num_batched_tokens)
        self._continue_running(draft)
        self._admit_waiting(draft)
        return StepPlan(tuple(draft.starts), tuple(draft.steps))

    def update(self, output: StepOutput) -> list[NewToken]:
        """Takes in what the step computed; returns the new tokens of the requests that are still here, in plan order.

        Raises `EngineError` if the output does not answer the plan.
        """
        new_tokens: list[NewToken] = []
        sampled, scored = iter(output.tokens), iter(output.scored)
        for state, step in zip(self._draft.states, self._draft.steps, strict=True):
            token = next(sampled, None) if step.samples else None
            if step.samples and (token is None or token.row != step.row):
                raise EngineError(f"the backend sampled {token}, the plan asked for a token of row {step.row}")
            prompt_logprobs = _scores_of(step, scored)
            if state.row != step.row:
                continue
            state.num_computed_tokens += step.num_tokens
            if prompt_logprobs:
                state.num_scored_tokens = step.scored_positions.stop
                state.prompt_logprobs += prompt_logprobs
            if token is not None:
                new_tokens.append(state.append_sampled(token))
        return new_tokens

    def extend(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Tokens that follow without being sampled: the next steps compute them like any others that are known."""
        state = self._running.get(request_id) or self._waiting[request_id]
        state.token_ids.extend(token_ids)

    @property
    def step_request_ids(self) -> list[str]:
        """The requests that compute something in the last scheduled step."""
        return [state.request_id for state in self._draft.states]

    @property
    def started_request_ids(self) -> list[str]:
        """The requests that took a row in the last scheduled step."""
        return self._draft.started_ids

    @property
    def step_counts(self) -> StepCounts:
        return StepCounts(self._draft.num_prompt_tokens, self._draft.num_preempted)

    def _continue_running(self, draft: _Draft) -> None:
        for state in tuple(self._running.values()):
            if draft.budget == 0 or state.row is None:  # no row: preempted in this step, and so are all after it
                return
            num_tokens = min(len(state.token_ids) - state.num_computed_tokens, draft.budget)
            num_new_blocks = state.blocks.num_missing(state.num_computed_tokens + num_tokens)
            if num_new_blocks and not self._make_room(state, num_new_blocks, draft):
                return
            self._compute(state, num_tokens, num_new_blocks, draft)

    def _admit_waiting(self, draft: _Draft) -> None:
        while self._waiting and draft.budget and self._free_rows:
            state = next(iter(self._waiting.values()))
            if not self._has_room(state):
                return
            del self._waiting[state.request_id]
            self._running[state.request_id] = state
            draft.starts.append(state.take_row(self._free_rows.pop()))
            draft.started_ids.append(state.request_id)
            num_tokens = min(len(state.token_ids), draft.budget)
            self._compute(state, num_tokens, blocks_for(num_tokens), draft)

    def _compute(self, state: RequestState, num_tokens: int, num_new_blocks: int, draft: _Draft) -> None:
        """Gives the request `num_tokens` of the step and the blocks they need, which are free."""
        computed = state.num_computed_tokens
        assert state.row is not None
        new_block_ids = state.blocks.append(num_new_blocks) if num_new_blocks else ()
        samples = computed + num_tokens == len(state.token_ids)
        draft.steps.append(
            RowStep(
                state.row,
                computed,
                num_tokens,
                new_block_ids,
                samples,
                new_token_ids=state.take_new_tokens(),
                scored_positions=state.scored_positions(num_tokens),
            )
        )
        draft.states.append(state)
        draft.budget -= num_tokens
        if computed < state.num_start_tokens:
            draft.num_prompt_tokens += num_tokens

    # ---- room

    def _has_room(self, state: RequestState) -> bool:
        """Whether all known tokens of a waiting request fit beside what the running ones will soon need.

        A request preempted in this step never does: had its blocks been enough for that, it would have stayed.
        """
        headroom = self._num_headroom_blocks if self._running else 0
        return blocks_for(len(state.token_ids)) + headroom <= self._pool.num_free

    def _make_room(self, state: RequestState, num_blocks: int, draft: _Draft) -> bool:
        """Preempts from the youngest on until `num_blocks` are free; False if that took `state` itself.

        The oldest request is never preempted for another's sake, so it always ends: no livelock.
        """
        while self._pool.num_free < num_blocks:
            victim = next(reversed(self._running.values()))
            self._preempt(victim)
            draft.num_preempted += 1
            if victim is state:
                return False
        return True

    def _preempt(self, state: RequestState) -> None:
        """Back to the front of the waiting line; everything it computed will be computed again."""
        del self._running[state.request_id]
        self._vacate(state)
        self._waiting[state.request_id] = state
        self._waiting.move_to_end(state.request_id, last=False)

    def _vacate(self, state: RequestState) -> None:
        assert state.row is not None
        self._free_rows.append(state.row)
        state.leave_row()

    def check_integrity(self) -> None:
        """Raises `EngineError` unless rows and blocks are held exactly by the running requests, each once."""
        self._pool.check_integrity()
        rows = [state.row for state in self._running.values()]
        if sorted(self._free_rows + [row for row in rows if row is not None]) != list(range(self._max_num_seqs)):
            raise EngineError("rows are neither free nor held by exactly one running request")
        if any(state.row is not None or state.blocks.block_ids for state in self._waiting.values()):
            raise EngineError("a waiting request holds a row or blocks")
        held = [block_id for state in self._running.values() for block_id in state.blocks.block_ids]
        if len(held) != len(set(held)) or len(held) != self._pool.num_used:
            raise EngineError("blocks are held by other than exactly one running request")


def _scores_of(step: RowStep, scored: Iterator[ScoredTokens]) -> tuple[TokenLogprobs, ...]:
    """What the backend says of the step's scored positions. Raises `EngineError` if it does not answer the plan."""
    if not step.scored_positions:
        return ()
    answer = next(scored, None)
    if answer is None or answer.row != step.row or len(answer.logprobs) != len(step.scored_positions):
        raise EngineError(f"the backend scored {answer}, the plan asked for {step.scored_positions} of row {step.row}")
    return answer.logprobs
