"""Prompts: what is left of a step beside decoding, shared among those who run and those who wait."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config import PrefillLimits
from octavo.kvcache.block_table import blocks_for
from octavo.kvcache.kv_cache import KvCache
from octavo.kvcache.prefix_match import PrefixMatch
from octavo.scheduler.draft import Draft
from octavo.scheduler.outcome import Started
from octavo.scheduler.pace import Pace
from octavo.scheduler.request_state import RequestState
from octavo.scheduler.running import Running
from octavo.scheduler.service_order import ServiceOrder
from octavo.scheduler.step_budget import UNBOUNDED_S, StepBudget
from octavo.scheduler.waiting import Waiting

MAX_PASSED_OVER = 64
"""So many waiting requests a step passes over, at most, because others are about to compute their prefix."""

LONG_TIME = 0.5
"""Long prefills take so much time for each second that the rest of the step takes: a third of the step."""

LONG_PATIENCE_S = 2.0
"""When a long prompt has waited so long for memory, short ones that came later let it enter first."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The next waiting request, and what the KV cache knows of its tokens."""

    state: RequestState
    match: PrefixMatch


@dataclass(frozen=True, slots=True)
class _Blocked:
    """The first of the long line, and since when there has been too little memory for it."""

    state: RequestState
    since: float


class Prefill:
    """Hands out a step's budget for prompts, long ones first within their share, then short ones.

    Running prefills and waiting requests are served in one order, that of the policy: a request that waits may go
    before a prompt that is half computed. No more requests run than a step has tokens.
    """

    def __init__(
        self,
        kv: KvCache,
        order: ServiceOrder,
        waiting: Waiting,
        running: Running,
        pace: Pace,
        limits: PrefillLimits,
        max_num_batched_tokens: int,
    ) -> None:
        self._kv = kv
        self._order = order
        self._waiting = waiting
        self._running = running
        self._pace = pace
        self._limits = limits
        self._max_num_batched_tokens = max_num_batched_tokens
        # Kept free when a request enters beside others, so that these can grow for a while before one must leave.
        self._num_headroom_blocks = max(1, kv.num_blocks // 100)
        self._blocked: _Blocked | None = None

    def hand_out(self, draft: Draft, now: float) -> None:
        """Adds to a step that has its decoding requests what it computes of prompts."""
        prefills = list(self._running.prefilling.values())
        long = [state for state in prefills if self._is_long(state)]
        short = [state for state in prefills if not self._is_long(state)] if long else prefills
        draft.num_partial, draft.num_long_partial = len(prefills), len(long)
        budget = self._budget(draft, prefills)
        if self._limits.long_tokens is not None:
            self._serve(long, self._long_share(draft, budget, short), draft, now, long=True)
        self._serve(short, budget, draft, now, long=False)

    def blocked_by_room(self) -> RequestState | None:
        """The waiting request that is next, if it may enter but for a row, or for the memory its tokens take."""
        state = self._waiting.first(long=False)
        if state is None or self._limits.max_partial is not None:
            return None
        match = self._kv.match(state.blocks, state.token_ids, state.max_skipped_tokens)
        if match.is_pending:
            return None
        num_blocks = blocks_for(len(state.token_ids)) - match.node.depth + self._num_kept_blocks
        return None if self._running.has_free_row and num_blocks <= self._kv.num_available else state

    @property
    def _num_kept_blocks(self) -> int:
        """Blocks that are not for who enters now: those kept for prefills, and some for all who run to grow."""
        return self._running.num_reserved_blocks + (self._num_headroom_blocks if self._running else 0)

    def _is_long(self, state: RequestState) -> bool:
        most = self._limits.long_tokens
        return most is not None and state.num_uncached_tokens > most

    # ---- budgets

    def _budget(self, draft: Draft, prefills: list[RequestState]) -> StepBudget:
        """What the step may take on beside decoding."""
        first = self._waiting.first(long=False)
        arrivals = [state.request.arrival_time for state in prefills if not state.num_preemptions]
        if first is not None:
            arrivals.append(first.request.arrival_time)
        draft.pressed = self._pace.presses(min(arrivals, default=None))
        seconds = self._pace.limit_s(decoding=draft.num_decoding > 0, pressed=draft.pressed)
        num_tokens = self._max_num_batched_tokens - draft.num_decoding
        if seconds == UNBOUNDED_S:
            return StepBudget(num_tokens, seconds, self._pace.model)
        draft.limit_s = seconds
        return StepBudget(num_tokens, seconds - self._pace.model.predict_s(draft.size), self._pace.model)

    def _long_share(self, draft: Draft, budget: StepBudget, short: list[RequestState]) -> StepBudget:
        """What long prefills may take of it: all while nobody else is there, else no more than the others."""
        num_short_tokens = sum(state.num_uncached_tokens for state in short) + self._waiting.num_short_tokens
        if not draft.num_decoding and not num_short_tokens:
            return budget
        assert self._limits.long_tokens is not None
        most = min(self._limits.long_tokens, -(-budget.tokens // 2))
        model = self._pace.model
        if not model.ready:
            return budget.share(most, UNBOUNDED_S)
        num_short_tokens = min(num_short_tokens, budget.tokens - most)
        others_s = model.predict_s(draft.size) + model.added_s(num_short_tokens, 0)
        return budget.share(most, LONG_TIME * others_s)

    # ---- service

    def _serve(self, prefills: list[RequestState], budget: StepBudget, draft: Draft, now: float, *, long: bool) -> None:
        """Serves prefills and waiting requests in order, as far as the budget goes."""
        prefills.sort(key=self._order.place, reverse=True)
        admits = draft.admits
        while budget.tokens > 0:
            candidate = self._candidate(draft, now, long=long) if admits else None
            if prefills and (candidate is None or self._order.precedes(prefills[-1], candidate.state)):
                if not self._continue(prefills.pop(), budget, draft, long=long):
                    return
            elif candidate is not None:
                admits = self._enter(candidate, budget, draft, long=long)
                if not admits:
                    self._note_blocked(candidate.state, now, long=long)
            else:
                return

    def _candidate(self, draft: Draft, now: float, *, long: bool) -> _Candidate | None:
        """The next waiting request, if one may enter. Whose prefix others are about to compute is passed over."""
        if not self._may_enter(draft, long=long):
            return None
        while self._waiting.num_set_aside <= MAX_PASSED_OVER:
            state = self._waiting.first(long=long)
            if state is None or (not long and self._yields(state, now)):
                return None
            match = self._kv.match(state.blocks, state.token_ids, state.max_skipped_tokens, may_load=True)
            if not match.is_pending:
                return _Candidate(state, match)
            self._waiting.set_aside(state)
        return None

    def _may_enter(self, draft: Draft, *, long: bool) -> bool:
        limits = self._limits
        return (
            self._running.has_free_row
            and len(self._running) < self._max_num_batched_tokens
            and (limits.max_partial is None or draft.num_partial < limits.max_partial)
            and (not long or draft.num_long_partial < limits.max_long_partial)
        )

    def _yields(self, state: RequestState, now: float) -> bool:
        """Whether a short request stays back for a long one that has waited for memory too long already."""
        blocked = self._blocked
        if blocked is None or now - blocked.since < LONG_PATIENCE_S:
            return False
        return blocked.state is self._waiting.first(long=True) and self._order.precedes(blocked.state, state)

    def _continue(self, state: RequestState, budget: StepBudget, draft: Draft, *, long: bool) -> bool:
        """Computes more of a prompt that is under way, in blocks that were kept for it; False if nothing fits."""
        position = state.num_computed_tokens
        num_tokens = budget.fit(len(state.token_ids) - position, position)
        if num_tokens <= 0:
            return False
        num_blocks = state.blocks.num_missing(position + num_tokens)
        new_block_ids: tuple[tuple[int, ...], ...] = ()
        if num_blocks:
            if not self._kv.make_room(num_blocks):
                return False
            self._running.use_reserved(state, num_blocks)
            new_block_ids = state.blocks.append(num_blocks)
        self._compute(state, num_tokens, new_block_ids, budget, draft, long=long)
        return True

    def _enter(self, candidate: _Candidate, budget: StepBudget, draft: Draft, *, long: bool) -> bool:
        """Gives a waiting request a row and blocks; False if they do not suffice."""
        state, match = candidate.state, candidate.match
        if self._enter_behind(state, match, budget, draft, long=long):
            return True
        # The block to be copied from is one more to hold: in a tight cache that may be the one too many.
        return match.partial is not None and self._enter_behind(state, match.whole_blocks(), budget, draft, long=long)

    def _enter_behind(
        self, state: RequestState, match: PrefixMatch, budget: StepBudget, draft: Draft, *, long: bool
    ) -> bool:
        """Begins behind what was matched, if there is room for all known tokens beside what is kept for others."""
        position = match.num_tokens
        num_tokens = budget.fit(len(state.token_ids) - position, position)
        if num_tokens <= 0:
            return False
        num_later_blocks = blocks_for(len(state.token_ids)) - blocks_for(position + num_tokens)
        entered = self._kv.enter(
            state.blocks,
            state.token_ids,
            match,
            num_tokens=position + num_tokens,
            num_spare_blocks=num_later_blocks + self._num_kept_blocks,
            spare_wanted=bool(self._running),
        )
        if not entered:
            return False
        self._waiting.remove(state)
        self._start(state, position, num_later_blocks, draft)
        draft.num_partial += 1
        draft.num_long_partial += long
        self._compute(state, num_tokens, state.blocks.block_ids_by_group, budget, draft, long=long)
        return True

    def _note_blocked(self, state: RequestState, now: float, *, long: bool) -> None:
        if long and (self._blocked is None or self._blocked.state is not state):
            self._blocked = _Blocked(state, now)

    def _start(self, state: RequestState, position: int, num_later_blocks: int, draft: Draft) -> None:
        draft.starts.append(state.take_row(self._running.enter(state, num_later_blocks), position))
        if state.num_cached_tokens is None:
            state.num_cached_tokens = position
            draft.started.append(Started(state.request_id, len(state.token_ids), position))
            self._order.charge_cached(state, position)
        else:
            self._order.waive(state)

    def _compute(
        self,
        state: RequestState,
        num_tokens: int,
        new_block_ids: tuple[tuple[int, ...], ...],
        budget: StepBudget,
        draft: Draft,
        *,
        long: bool,
    ) -> None:
        position = state.num_computed_tokens
        if draft.compute(state, num_tokens, new_block_ids):
            draft.num_partial -= 1
            draft.num_long_partial -= long
        draft.num_long_tokens += num_tokens if long else 0
        budget.spend(num_tokens, position)
        self._order.charge_prompt(state, position + num_tokens)
