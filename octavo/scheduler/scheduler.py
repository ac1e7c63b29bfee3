"""Who computes how many tokens in the next step.

There are no phases. Every request has `num_tokens` known tokens of which `num_computed_tokens` have been computed, and
each step hands out its token budget. First every request that decodes gets its one token; what is left goes to those
with more to compute, running or waiting, in the order of the policy (prefill.py). A request whose last known token is
computed in a step gets a new one at its end. One that enters begins behind the tokens that the KV cache knows already;
while a running request is about to compute what comes next, it waits for that, and those behind it may pass.

Who decodes always gets its token: no more requests run than a step has tokens, and blocks are found for all of them
before the step is handed out, by preempting if there are too few.

A request under beam search is several here, its beams: what is sampled for a beam is only reported. It has nothing to
compute until it is given its next token, and makes room for others of its kind if they need it to get that far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

from octavo.config import SchedulingConfig
from octavo.errors import EngineError, InvalidValueError
from octavo.kvcache.kv_cache import KvCache
from octavo.request import Request
from octavo.scheduler.accounts import OUTPUT_TOKEN_COST
from octavo.scheduler.admission import Admission
from octavo.scheduler.decode_batch import DecodeBatch
from octavo.scheduler.draft import Draft
from octavo.scheduler.outcome import NewToken, NewTokens, Started
from octavo.scheduler.pace import Pace
from octavo.scheduler.policies.registry import POLICIES
from octavo.scheduler.prefill import Prefill
from octavo.scheduler.request_state import RequestState
from octavo.scheduler.running import Running, least_wasteful
from octavo.scheduler.service_order import ServiceOrder
from octavo.scheduler.step_time import StepSize
from octavo.scheduler.waiting import Waiting
from octavo.step import RowStep, ScoredTokens, StepOutput, StepPlan, TokenLogprobs

DEFAULT_SCHEDULING = SchedulingConfig()

AMPLE = 3
"""Blocks are taken before they are needed if so many times as many are left."""

MOST_DISPLACED = 8
"""So many requests, at most, make way in one step for one that waits."""


class Scheduler:
    """Requests from arrival to end: waiting, running in a row, preempted back to waiting, gone.

    Owns the rows and, through the KV cache, the blocks of its requests. Knows neither text nor tensors: the engine
    tells it when a request has ended. `schedule()` and `update()` alternate; `add`, `extend` and `remove` may come at
    any time between. `step_counts` are of the step scheduled last. `clock` is the one that `Request.arrival_time` was
    read from.
    """

    def __init__(
        self,
        kv: KvCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        config: SchedulingConfig = DEFAULT_SCHEDULING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kv = kv
        self._clock = clock
        self._policy = POLICIES[config.policy]
        self._order = ServiceOrder(self._policy, dict(config.weights))
        self._admission = Admission(config.queue, kv.num_blocks)
        decides_by_time = config.targets.given or config.prefill.long_tokens is not None
        self._pace = Pace(config.targets, learns=decides_by_time)
        self._states: dict[str, RequestState] = {}
        self._waiting = Waiting(config.prefill.long_tokens)
        self._running = Running(max_num_seqs)
        self._parked: dict[str, RequestState] = {}  # preempted while they awaited their next token
        self._max_num_batched_tokens = max_num_batched_tokens
        self._prefill = Prefill(
            kv, self._order, self._waiting, self._running, self._pace, config.prefill, max_num_batched_tokens
        )
        self._draft = Draft(self._running.batch)
        self.step_counts = self._draft.counts

    # ---- requests come and go

    def add(self, request: Request) -> None:
        """Lets a request wait for its turn.

        Raises `ContextLengthError` if it could not run even alone, `InvalidValueError` if its id is taken,
        `QueueFullError` if too many wait already.
        """
        if request.request_id in self:
            raise InvalidValueError(f"request_id {request.request_id!r} is in use", param="request_id")
        self._admission.check_fits(request)
        if not request.is_admitted:
            self.check_queue(len(request.prompt_token_ids))
        self._settle()
        blocks = self._kv.open(request.prefix_key, request.parent_id)
        state = RequestState(request, blocks, self._order.enter(request), self._policy.expendability(request))
        self._states[request.request_id] = state
        self._look_up(state)
        state.rank = self._order.rank(request, state.num_entry_tokens)
        self._waiting.add(
            state,
            late_s=self._pace.late_s(request.arrival_time, state.num_uncached_tokens),
            timeout_s=self._admission.timeout_at(request),
        )

    def remove(self, request_id: str) -> bool:
        """Takes a request out, finished or aborted: its row and blocks are free at once. False if it is not here."""
        state = self._states.pop(request_id, None)
        if state is None:
            return False
        self._settle()
        if state.line is not None:
            self._waiting.remove(state)
        elif self._parked.pop(request_id, None) is None:
            self._vacate(state)
        self._kv.close(state.blocks)
        self._order.leave(state)
        if not self._states:
            self._pace.pause()
        return True

    def extend(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Tokens that follow without being sampled: the next steps compute them like any others that are known."""
        self._settle()
        state = self._states[request_id]
        state.extend(token_ids)
        if state.line is not None:
            self._waiting.extended(state, len(token_ids))
        elif self._parked.pop(request_id, None) is not None:
            self._wait_again(state)
        elif token_ids:
            self._running.extended(state)

    def fork(self, parent_id: str, request_id: str) -> None:
        """A new request that knows what another does, all of it computed, and shares its blocks.

        They part by what `extend` gives each of them. Without a row or a block for it, the new request waits.
        """
        self._settle()
        parent = self._states[parent_id]
        account = self._order.enter(parent.request)
        rank = self._order.rank_beside(parent)
        has_row = parent.row is not None and self._running.has_free_row
        if has_row and len(self._running) < self._max_num_batched_tokens and self._has_room(1):
            blocks = self._kv.fork(parent.blocks, parent.token_ids, parent.num_computed_tokens)
            state = parent.fork(request_id, blocks, account, rank)
            state.take_row_of_fork(self._running.enter_fork(state), parent.num_computed_tokens)
        else:
            blocks = self._kv.open(parent.request.prefix_key, parent.request.parent_id)
            state = parent.fork(request_id, blocks, account, rank)
            self._wait_again(state)
        self._states[request_id] = state

    def check_queue(self, num_new_tokens: int, num_pending: int = 0, num_pending_tokens: int = 0) -> None:
        """Raises `QueueFullError` if a request of so many tokens would be refused after these. Any thread may ask.

        Requests for which there is a free row are about to enter: they are not in the queue.
        """
        num_requests = self._waiting.num_requests + num_pending - self._running.num_free_rows
        self._admission.check_queue(max(0, num_requests), self._waiting.num_tokens + num_pending_tokens, num_new_tokens)

    def timed_out(self) -> list[str]:
        """The requests that have waited longer than they may, each told once. They are here until removed."""
        if not self._waiting.num_requests:
            return []
        return [state.request_id for state in self._waiting.timed_out(self._clock())]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._states

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return self._waiting.num_requests + len(self._parked)

    @property
    def has_requests(self) -> bool:
        return bool(self._states)

    # ---- a step

    def schedule(self) -> StepPlan:
        """Decides the next step."""
        return self._go_on() or self._decide()

    def _go_on(self) -> StepPlan | None:
        """The last step again; None if there is more to decide, or somebody needs a block."""
        batch = self._draft.batch
        if not self._draft.only_decodes or not self._running.only_decodes(batch) or self._waiting.num_requests:
            return None
        return batch.plan if batch.num_free_steps > 0 else None

    def _decide(self) -> StepPlan:
        """Any step."""
        self._settle()
        now = self._clock()
        if self._pace.learns:
            self._pace.begin(now)
        draft = self._draft = Draft(self._running.batch, self._kv.num_evicted)
        self._make_room_for_decoding(draft)
        if self._waiting.num_requests:
            self._waiting.sort_out_late(now)
            self._make_way(draft)
        self._decode(draft)
        if self._waiting.num_requests or self._running.prefilling or self._pace.learns:
            self._prefill.hand_out(draft, now)
            while draft.is_empty and self._is_stuck:
                self._break_deadlock(draft, now)
        return self._finish(draft)

    def update(self, output: StepOutput) -> NewTokens:
        """Takes in what the step computed; returns the new tokens of the requests that are still here.

        Raises `EngineError` if the output does not answer the plan.
        """
        draft, batch = self._draft, self._draft.batch
        if len(output.token_ids) != draft.num_sampling:
            raise EngineError(f"the backend sampled {len(output.token_ids)} tokens instead of {draft.num_sampling}")
        if not draft.only_decodes:
            self._kv.finish_moves(output.saved)
        if not self._running.still_decodes(batch):
            batch = draft.list_batch()
        num_decoding = len(batch.states)
        token_ids, logprobs = output.token_ids[:num_decoding], output.logprobs[:num_decoding]
        batch.append_sampled(token_ids)
        others = self._take_in_steps(draft, output) if draft.steps else []
        if not logprobs:
            return NewTokens(batch.request_ids, token_ids, others)
        reported = map(NewToken, batch.request_ids, token_ids, repeat(False), logprobs)
        return NewTokens((), (), [*reported, *others])

    def _take_in_steps(self, draft: Draft, output: StepOutput) -> list[NewToken]:
        """What the draft's `steps` have computed."""
        self._settle()
        num_decoding = len(draft.batch.states)
        sampled = zip(output.token_ids[num_decoding:], output.logprobs[num_decoding:] or repeat(None), strict=False)
        scored = iter(output.scored)
        new_tokens: list[NewToken] = []
        for state, step in zip(draft.states, draft.steps, strict=True):
            token_id, logprobs = next(sampled) if step.samples else (None, None)
            prompt_logprobs = _scores_of(step, scored) if step.scored_positions else ()
            if state.row != step.row:
                continue
            state.num_uncomputed_tokens -= step.num_tokens
            self._publish(state)
            if state.awaits_token and (state.is_beam or state.request_id not in self._running.decoding):
                self._running.caught_up(state)
            if prompt_logprobs:
                state.num_scored_tokens = step.scored_positions.stop
                state.prompt_logprobs += prompt_logprobs
            if token_id is not None:
                state.account.charge(OUTPUT_TOKEN_COST)
                new_tokens.append(state.append_sampled(token_id, logprobs))
        return new_tokens

    def forget_step(self) -> None:
        """The step failed: how long it took means nothing."""
        self._pace.pause()

    @property
    def step_request_ids(self) -> list[str]:
        """The requests that compute something in the last scheduled step."""
        return self._draft.request_ids

    @property
    def started(self) -> list[Started]:
        """The requests that entered for the first time in the last scheduled step."""
        return self._draft.started

    @property
    def kv_utilization(self) -> float:
        """Tokens held over slots of the blocks that requests hold; a shared block counts for each of them. 1: none."""
        batch = self._running.batch
        others = (*batch.apart, *self._running.prefilling.values(), *self._running.awaiting.values())
        num_slots = batch.num_slots + sum([state.blocks.num_slots for state in others])
        num_tokens = batch.num_computed_tokens + sum([state.num_computed_tokens for state in others])
        return num_tokens / num_slots if num_slots else 1.0

    def _make_room_for_decoding(self, draft: Draft) -> None:
        """Preempts until there is a block for each request that decodes and has filled its last one."""
        running = self._running
        while not self._has_room(running.batch.num_missing_blocks):
            victim = least_wasteful(running)
            assert victim is not None  # whoever decodes has got a token since it entered
            self._preempt(victim)
            draft.num_preempted += 1
            draft.admits = False

    def _has_room(self, num_blocks: int) -> bool:
        """Whether so many blocks are there beside those kept for prefills; they are free then."""
        if self._kv.num_available - self._running.num_reserved_blocks < num_blocks:
            return False
        return self._kv.make_room(num_blocks)

    def _make_way(self, draft: Draft) -> None:
        """Lets requests go for the sake of the next waiting one, if it has a better right to their room."""
        if not self._policy.displaces_any or not draft.admits:
            return
        for _ in range(MOST_DISPLACED):
            waiting = self._prefill.blocked_by_room()
            if waiting is None:
                return
            victim = least_wasteful(state for state in self._running if self._policy.displaces(waiting, state))
            if victim is None:
                return
            self._preempt(victim)
            draft.num_displaced += 1

    @property
    def _is_stuck(self) -> bool:
        """Whether those who run wait for one another, or for some who wait: a step that has nothing cannot help."""
        return len(self._running.prefilling) > 1 or bool(self._running.awaiting and self._waiting.num_requests)

    def _break_deadlock(self, draft: Draft, now: float) -> None:
        """Lets the last one go of those who await tokens that depend on some who wait; else the last prefill.

        Prefills can hold all blocks of a window group between them, since nothing is kept of these.
        """
        stuck = self._running.awaiting or self._running.prefilling
        self._preempt(max(stuck.values(), key=self._order.place))
        draft.num_preempted += 1
        draft.admits = True
        self._prefill.hand_out(draft, now)

    def _decode(self, draft: Draft) -> None:
        """One token for each request that has only its newest left to compute."""
        batch = draft.batch = self._running.batch
        draft.num_decoding = len(batch)
        if self._pace.learns:
            draft.size = StepSize(len(batch.states), float(batch.num_computed_tokens), len(batch.states))
        draft.new_blocks = batch.take_blocks(self._block_takers(batch))
        for state in batch.apart:
            self._decode_apart(state, draft)

    def _block_takers(self, batch: DecodeBatch) -> list[RequestState]:
        """Who gets a block: those that are full; with them, if memory is ample, those that will soon be.

        So blocks are taken in one step of 16, and nothing is left to decide in the others.
        """
        full = batch.full
        if not full:
            return []
        short = batch.short
        num_blocks = len(short) + len(batch.apart)
        num_spare = AMPLE * num_blocks + self._running.num_reserved_blocks
        return short if self._kv.make_ample_room(num_blocks, num_spare) else full

    def _decode_apart(self, state: RequestState, draft: Draft) -> None:
        """One token for a request whose row is told more than to go on."""
        new_block_ids = state.blocks.append(1) if state.is_full else ()
        if state.num_untold_tokens:
            self._running.regroup()
        if state.is_new_in_row:
            draft.starts.append(state.start())
            new_block_ids = state.blocks.block_ids_by_group
        draft.compute(state, 1, new_block_ids)

    def _finish(self, draft: Draft) -> StepPlan:
        """The plan, and what there is to remember about it."""
        if self._waiting.num_set_aside:
            self._waiting.restore()
        draft.num_late = self._waiting.num_late
        moves = self._kv.start_moves()
        draft.num_evicted_blocks = self._kv.num_evicted - draft.num_evicted_before
        draft.num_copied_blocks = len(moves.copies)
        if self._pace.learns:
            self._pace.note_size(draft.size, decoding=draft.num_decoding > 0)
            draft.predicted_s = self._pace.predicted_s
        else:
            draft.only_decodes = draft.is_bare and not moves.any
        self.step_counts = draft.counts
        return draft.batch.plan_with(draft.new_blocks) if draft.only_decodes else draft.plan(moves)

    def _settle(self) -> None:
        """Brings up to date what is known of the requests that decode, before anybody comes, goes or looks at them."""
        for state in self._running.settle():
            self._publish(state)

    def _publish(self, state: RequestState) -> None:
        """What the request has completed can be shared from now on."""
        num_computed_tokens = state.num_computed_tokens
        is_start = num_computed_tokens == state.num_start_tokens
        if is_start or num_computed_tokens >= state.blocks.publish_at or self._waiting.num_requests:
            self._kv.publish(state.blocks, state.token_ids, num_computed_tokens)
        if is_start:
            self._kv.publish_tail(state.blocks, state.token_ids, num_computed_tokens)

    def _preempt(self, state: RequestState) -> None:
        """Back to its place in the waiting line; what is evicted until it enters again must be computed again."""
        awaits_token = state.awaits_token
        self._vacate(state)
        state.note_preemption()
        if awaits_token:
            self._parked[state.request_id] = state
        else:
            self._wait_again(state)

    def _wait_again(self, state: RequestState) -> None:
        self._look_up(state)
        self._waiting.add(state)

    def _vacate(self, state: RequestState) -> None:
        self._running.leave(state)
        self._kv.leave(state.blocks, state.token_ids, state.num_computed_tokens)
        state.leave_row()

    def _look_up(self, state: RequestState) -> None:
        """What the KV cache knows of a request that waits; from now on this is not evicted for others who wait."""
        if not self._waiting.num_requests:  # else it is told of every block at once
            for running in self._running:
                self._kv.publish(running.blocks, running.token_ids, running.num_computed_tokens)
        state.num_entry_tokens = self._kv.match(state.blocks, state.token_ids, state.max_skipped_tokens).num_tokens

    def check_integrity(self) -> None:
        """Raises `EngineError` unless rows are held by running requests, each once, and blocks as the KV cache says."""
        self._running.check_integrity()
        for request_id, state in self._states.items():
            if (state.line is not None) + (state.row is not None) + (request_id in self._parked) != 1:
                raise EngineError("a request neither waits nor runs, or does both")
        if any(state.row is None and state.blocks.block_ids for state in self._states.values()):
            raise EngineError("a waiting request holds blocks")
        self._kv.check_integrity(state.blocks for state in self._running)


def _scores_of(step: RowStep, scored: Iterator[ScoredTokens]) -> tuple[TokenLogprobs, ...]:
    """What the backend says of the step's scored positions. Raises `EngineError` if it does not answer the plan."""
    answer = next(scored, None)
    if answer is None or answer.row != step.row or len(answer.logprobs) != len(step.scored_positions):
        raise EngineError(f"the backend scored {answer}, the plan asked for {step.scored_positions} of row {step.row}")
    return answer.logprobs
