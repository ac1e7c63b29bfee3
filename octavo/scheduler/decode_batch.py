"""The requests that decode, as long as none comes or goes: what their steps have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from octavo.config import BLOCK_TOKENS
from octavo.errors import EngineError
from octavo.scheduler.accounts import OUTPUT_TOKEN_COST
from octavo.scheduler.request_state import RequestState
from octavo.step import RowBlocks, StepPlan


class DecodeBatch:
    """Requests of which each gets a token in every step, in batch order.

    There is nothing to tell the rows of `states`: `plan` is a step that computes them and nothing else. Each of them
    fills a block in every 16th step, and is looked at only then: `at_block_end` are those that just have. All of them
    together hold `num_computed_tokens` in `num_slots`. The others, `apart`, take a `RowStep` each.
    """

    __slots__ = (
        "_appends",
        "_by_free_slots",
        "_costs",
        "_num_steps",
        "apart",
        "at_block_end",
        "num_computed_tokens",
        "num_slots",
        "plan",
        "request_ids",
        "rows",
        "states",
    )

    def __init__(self, decoding: Iterable[RequestState]) -> None:
        decoding = tuple(decoding)
        self.states = states = tuple([state for state in decoding if state.is_plain])
        self.apart = tuple([state for state in decoding if not state.is_plain])
        self.rows = tuple([state.row for state in states if state.row is not None])
        self.request_ids = [state.request_id for state in states]
        self.plan = StepPlan((), (), decoding=self.rows)
        self._appends = [state.token_ids.append for state in states]
        self._costs = [
            (account, num_requests * OUTPUT_TOKEN_COST)
            for account, num_requests in Counter([state.account for state in states]).items()
        ]
        self._by_free_slots: list[list[RequestState]] = [[] for _ in range(BLOCK_TOKENS)]
        for state in states:
            self._by_free_slots[-state.num_computed_tokens % BLOCK_TOKENS].append(state)
        self._num_steps = 0
        self.num_computed_tokens = sum([state.num_computed_tokens for state in states])
        self.num_slots = sum([state.blocks.num_slots for state in states])
        self.at_block_end = self._by_free_slots[0]

    def __len__(self) -> int:
        return len(self.states) + len(self.apart)

    @property
    def full(self) -> list[RequestState]:
        """Those of `states` whose next token needs another block."""
        return [state for state in self.at_block_end if state.is_full]

    @property
    def num_missing_blocks(self) -> int:
        """How many blocks the next tokens of all need."""
        return len(self.full) + sum([state.is_full for state in self.apart])

    def take_blocks(self, full: Sequence[RequestState]) -> tuple[RowBlocks, ...]:
        """Gives a block to each of those that are `full`; so many must be free."""
        self.num_slots += len(full) * BLOCK_TOKENS
        return tuple([RowBlocks(state.row, state.blocks.append(1)) for state in full if state.row is not None])

    def plan_with(self, new_blocks: tuple[RowBlocks, ...]) -> StepPlan:
        """A step of `states` for some of whom there are new blocks."""
        return StepPlan((), (), decoding=self.rows, new_blocks=new_blocks) if new_blocks else self.plan

    def append_sampled(self, token_ids: Sequence[int]) -> None:
        """A step has been made: each of `states` takes in the token that was sampled for it."""
        for append, token_id in zip(self._appends, token_ids, strict=True):
            append(token_id)
        for account, cost in self._costs:
            account.charge(cost)
        self._num_steps += 1
        self.num_computed_tokens += len(self.states)
        self.at_block_end = self._by_free_slots[self._num_steps % BLOCK_TOKENS]

    def check_integrity(self) -> None:
        """Raises `EngineError` unless all have one token to compute, `states` in their rows, and at the right slot."""
        if any(state.num_uncomputed_tokens != 1 for state in (*self.states, *self.apart)):
            raise EngineError("a request that decodes has not just its newest token to compute")
        if any(not state.is_plain or state.row != row for state, row in zip(self.states, self.rows, strict=True)):
            raise EngineError("a request that decodes has another row, or something to tell it")
        if self.at_block_end != [s for s in self.states if s.num_computed_tokens % BLOCK_TOKENS == 0]:
            raise EngineError("a request that decodes is at another slot of its block than was counted")
        if self.num_computed_tokens != sum(state.num_computed_tokens for state in self.states):
            raise EngineError("requests that decode have computed other tokens than were counted")
        if self.num_slots != sum(state.blocks.num_slots for state in self.states):
            raise EngineError("requests that decode have other blocks than were counted")
