"""Who computes how many tokens in the next step.

There are no phases. Every request has `num_tokens` known tokens of which `num_computed_tokens` have been computed, and
each step hands out its token budget: to the running requests, then to waiting ones, first come first served. A request
whose last known token is computed in a step gets a new one at its end. One that enters begins behind the tokens that
the KV cache knows already; while a running request is about to compute what comes next, it waits for that, and those
behind it may pass.

Two facts hold after every call: running requests stand in the order in which they entered, and of them only the last to
come from the waiting line, and those that were given tokens by `extend`, can have more than one token left to compute.
So those that decode are served before the one that prefills, and the one to preempt is always the last.

A request under beam search is several here, its beams: what is sampled for a beam is only reported. It has nothing to
compute until it is given its next token, and makes room for others of its kind if they need it to get that far.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from octavo.config import BLOCK_TOKENS
from octavo.errors import ContextLengthError, EngineError, InvalidValueError
from octavo.kvcache.block_table import blocks_for
from octavo.kvcache.kv_cache import KvCache, PrefixMatch
from octavo.request import Request
from octavo.scheduler.request_state import NewToken, RequestState
from octavo.step import RowStart, RowStep, ScoredTokens, StepOutput, StepPlan, TokenLogprobs

# How many waiting requests a step passes over, at most, because others are about to compute their prefix.
MAX_PASSED_OVER = 64


@dataclass(frozen=True, slots=True)
class Started:
    """A request entered for the first time, with `num_cached_tokens` of its prompt known to the KV cache."""

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What `schedule()` decided, in numbers. Recomputed tokens count as prompt tokens."""

    num_prompt_tokens: int = 0
    num_preempted: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    num_evicted_blocks: int = 0
    num_copied_blocks: int = 0


class _Draft:
    """A step while it is being decided. `states` are the requests of `steps`, in the same order."""

    __slots__ = (
        "budget",
        "num_copied_blocks",
        "num_evicted_blocks",
        "num_preempted",
        "num_prompt_tokens",
        "started",
        "starts",
        "states",
        "steps",
    )

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.starts: list[RowStart] = []
        self.started: list[Started] = []
        self.steps: list[RowStep] = []
        self.states: list[RequestState] = []
        self.num_prompt_tokens = 0
        self.num_preempted = 0
        self.num_evicted_blocks = 0
        self.num_copied_blocks = 0


class Scheduler:
    """Requests from arrival to end: waiting, running in a row, preempted back to waiting, gone.

    Owns the rows and, through the KV cache, the blocks of its requests. Knows neither text nor tensors: the engine
    tells it when a request has ended. `schedule()` and `update()` alternate; `add` and `remove` may come between.
    """

    def __init__(self, kv: KvCache, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._kv = kv
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        # Kept free when a request enters beside others, so that these can grow for a while before one must leave.
        self._num_headroom_blocks = max(1, kv.num_blocks // 100)
        self._waiting: OrderedDict[str, RequestState] = OrderedDict()
        self._running: dict[str, RequestState] = {}
        self._parked: dict[str, RequestState] = {}  # preempted while they awaited their next token
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
        capacity = self._kv.num_blocks * BLOCK_TOKENS
        if longest > capacity:
            raise ContextLengthError(
                f"the request may grow to {longest} tokens, the whole KV cache holds {capacity}", param="max_tokens"
            )
        state = RequestState(request, self._kv.open(request.prefix_key, request.parent_id))
        self._kv.match(
            state.blocks, state.token_ids, state.max_skipped_tokens
        )  # so that nobody who comes later makes it go
        self._waiting[request.request_id] = state

    def remove(self, request_id: str) -> bool:
        """Takes a request out, finished or aborted: its row and blocks are free at once. False if it is not here."""
        state = self._waiting.pop(request_id, None) or self._parked.pop(request_id, None)
        if state is None:
            state = self._running.pop(request_id, None)
            if state is None:
                return False
            self._vacate(state)
        self._kv.close(state.blocks)
        return True

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._running or request_id in self._waiting or request_id in self._parked

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._parked)

    @property
    def has_requests(self) -> bool:
        return bool(self._running or self._waiting or self._parked)

    # ---- a step

    def schedule(self) -> StepPlan:
        """Decides the next step."""
        draft = self._draft = _Draft(self._max_num_batched_tokens)
        num_evicted_before = self._kv.num_evicted
        self._continue_running(draft)
        self._admit_waiting(draft)
        if not draft.steps:
            self._swap_idle(draft)
        copies = self._kv.copies.start()
        draft.num_evicted_blocks = self._kv.num_evicted - num_evicted_before
        draft.num_copied_blocks = len(copies)
        return StepPlan(tuple(draft.starts), tuple(draft.steps), copies)

    def update(self, output: StepOutput) -> list[NewToken]:
        """Takes in what the step computed; returns the new tokens of the requests that are still here, in plan order.

        Raises `EngineError` if the output does not answer the plan.
        """
        self._kv.finish_copies()
        new_tokens: list[NewToken] = []
        sampled, scored = iter(output.tokens), iter(output.scored)
        for state, step in zip(self._draft.states, self._draft.steps, strict=True):
            token = next(sampled, None) if step.samples else None
            if step.samples and (token is None or token.row != step.row):
                raise EngineError(f"the backend sampled {token}, the plan asked for a token of row {step.row}")
            prompt_logprobs = _scores_of(step, scored)
            if state.row != step.row:
                continue
            self._advance(state, step.num_tokens)
            if prompt_logprobs:
                state.num_scored_tokens = step.scored_positions.stop
                state.prompt_logprobs += prompt_logprobs
            if token is not None:
                new_tokens.append(state.append_sampled(token))
        return new_tokens

    def _advance(self, state: RequestState, num_tokens: int) -> None:
        """The request has computed `num_tokens` more; what that completes can be shared from now on."""
        state.num_computed_tokens += num_tokens
        computed = state.num_computed_tokens
        if computed >= state.blocks.publish_at:
            self._kv.publish(state.blocks, state.token_ids, computed)
        if computed == state.num_start_tokens:
            self._kv.publish_tail(state.blocks, state.token_ids, computed)

    def extend(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Tokens that follow without being sampled: the next steps compute them like any others that are known."""
        state = self._state(request_id)
        state.token_ids.extend(token_ids)
        if self._parked.pop(request_id, None) is not None:
            self._wait_in_front(state)

    def fork(self, parent_id: str, request_id: str) -> None:
        """A new request that knows what another does, all of it computed, and shares its blocks.

        They part by what `extend` gives each of them. Without a row or a block for it, the new request waits in front.
        """
        parent = self._state(parent_id)
        if parent.row is not None and self._free_rows and self._kv.make_room(1):
            blocks = self._kv.fork(parent.blocks, parent.num_computed_tokens)
            self._running[request_id] = parent.fork(request_id, blocks, self._free_rows.pop())
        else:
            blocks = self._kv.open(parent.request.prefix_key, parent.request.parent_id)
            self._wait_in_front(parent.fork(request_id, blocks, None))

    @property
    def step_request_ids(self) -> list[str]:
        """The requests that compute something in the last scheduled step."""
        return [state.request_id for state in self._draft.states]

    @property
    def started(self) -> list[Started]:
        """The requests that entered for the first time in the last scheduled step."""
        return self._draft.started

    @property
    def step_counts(self) -> StepCounts:
        draft = self._draft
        return StepCounts(
            draft.num_prompt_tokens,
            draft.num_preempted,
            num_prefix_queries=sum(start.num_prompt_tokens for start in draft.started),
            num_prefix_hits=sum(start.num_cached_tokens for start in draft.started),
            num_evicted_blocks=draft.num_evicted_blocks,
            num_copied_blocks=draft.num_copied_blocks,
        )

    def _continue_running(self, draft: _Draft) -> None:
        for state in tuple(self._running.values()):
            if draft.budget == 0 or state.row is None:  # no row: preempted in this step, and so are all after it
                return
            num_tokens = min(len(state.token_ids) - state.num_computed_tokens, draft.budget)
            if num_tokens == 0:  # it awaits its next token
                continue
            num_new_blocks = state.blocks.num_missing(state.num_computed_tokens + num_tokens)
            if num_new_blocks and not self._make_room(state, num_new_blocks, draft):
                return
            new_block_ids = state.blocks.append(num_new_blocks) if num_new_blocks else ()
            if state.is_new_in_row:
                draft.starts.append(state.start())
                new_block_ids = state.blocks.block_ids_by_group
            self._compute(state, num_tokens, new_block_ids, draft)

    def _swap_idle(self, draft: _Draft) -> None:
        """When all that run await tokens that depend on some who wait, they make room for these, the last one first."""
        while not draft.steps and self._waiting and self._running:
            self._preempt(next(reversed(self._running.values())))
            draft.num_preempted += 1
            self._admit_waiting(draft)

    def _admit_waiting(self, draft: _Draft) -> None:
        for state in tuple(islice(self._waiting.values(), len(self._free_rows) + MAX_PASSED_OVER)):
            if not draft.budget or not self._free_rows:
                return
            match = self._kv.match(state.blocks, state.token_ids, state.max_skipped_tokens)
            if match.is_pending:
                continue
            entered = self._enter(state, match, draft)
            if not entered and match.partial is not None:
                entered = self._enter(state, match.whole_blocks(), draft)
            if not entered:
                return

    def _enter(self, state: RequestState, match: PrefixMatch, draft: _Draft) -> bool:
        """Gives a waiting request a row and blocks; False if they do not suffice.

        Room for all its known tokens must be had beside what the running requests will soon need, so a request
        preempted in this step never enters: had its blocks been enough for that, it would have stayed.
        """
        num_tokens = min(len(state.token_ids) - match.num_tokens, draft.budget)
        num_blocks_now = blocks_for(match.num_tokens + num_tokens)
        headroom = self._num_headroom_blocks if self._running else 0
        if not self._kv.enter(
            state.blocks,
            state.token_ids,
            match,
            num_tokens=match.num_tokens + num_tokens,
            num_spare_blocks=blocks_for(len(state.token_ids)) - num_blocks_now + headroom,
            spare_wanted=bool(self._running),
        ):
            return False
        del self._waiting[state.request_id]
        self._running[state.request_id] = state
        draft.starts.append(state.take_row(self._free_rows.pop(), match.num_tokens))
        if state.num_cached_tokens is None:
            state.num_cached_tokens = match.num_tokens
            draft.started.append(Started(state.request_id, len(state.token_ids), match.num_tokens))
        self._compute(state, num_tokens, state.blocks.block_ids_by_group, draft)
        return True

    def _compute(
        self, state: RequestState, num_tokens: int, new_block_ids: tuple[tuple[int, ...], ...], draft: _Draft
    ) -> None:
        """Gives the request `num_tokens` of the step."""
        computed = state.num_computed_tokens
        assert state.row is not None
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

    def _make_room(self, state: RequestState, num_blocks: int, draft: _Draft) -> bool:
        """Evicts, then preempts from the youngest on until `num_blocks` are free; False if that took `state` itself.

        The oldest request is never preempted for another's sake, so it always ends: no livelock.
        """
        while not self._kv.make_room(num_blocks):
            victim = next(reversed(self._running.values()))
            self._preempt(victim)
            draft.num_preempted += 1
            if victim is state:
                return False
        return True

    def _preempt(self, state: RequestState) -> None:
        """Back to the front of the waiting line; what is evicted until it enters again must be computed again."""
        del self._running[state.request_id]
        awaits_token = state.num_computed_tokens == state.num_tokens
        self._vacate(state)
        if awaits_token:
            self._parked[state.request_id] = state
        else:
            self._wait_in_front(state)

    def _wait_in_front(self, state: RequestState) -> None:
        self._waiting[state.request_id] = state
        self._waiting.move_to_end(state.request_id, last=False)

    def _state(self, request_id: str) -> RequestState:
        return self._running.get(request_id) or self._waiting.get(request_id) or self._parked[request_id]

    def _vacate(self, state: RequestState) -> None:
        assert state.row is not None
        self._free_rows.append(state.row)
        self._kv.leave(state.blocks, state.token_ids, state.num_computed_tokens)
        state.row = None
        state.num_computed_tokens = 0

    def check_integrity(self) -> None:
        """Raises `EngineError` unless rows are held by running requests, each once, and blocks as the KV cache says."""
        rows = [state.row for state in self._running.values()]
        if sorted(self._free_rows + [row for row in rows if row is not None]) != list(range(self._max_num_seqs)):
            raise EngineError("rows are neither free nor held by exactly one running request")
        if any(
            state.row is not None or state.blocks.block_ids
            for state in (*self._waiting.values(), *self._parked.values())
        ):
            raise EngineError("a waiting request holds a row or blocks")
        self._kv.check_integrity(state.blocks for state in self._running.values())


def _scores_of(step: RowStep, scored: Iterator[ScoredTokens]) -> tuple[TokenLogprobs, ...]:
    """What the backend says of the step's scored positions. Raises `EngineError` if it does not answer the plan."""
    if not step.scored_positions:
        return ()
    answer = next(scored, None)
    if answer is None or answer.row != step.row or len(answer.logprobs) != len(step.scored_positions):
        raise EngineError(f"the backend scored {answer}, the plan asked for {step.scored_positions} of row {step.row}")
    return answer.logprobs
