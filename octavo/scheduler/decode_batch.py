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

    There is nothing to tell the rows of `states`: `plan` is a step that computes them and nothing else. As long as all
    of them have free slots, for `num_free_steps` more, nothing is done in a step for any one of them: the tokens are
    put aside, and `settle` gives them to their requests. All together hold `num_computed_tokens`, those put aside
    among them, in `num_slots`. The others, `apart`, take a `RowStep` each.
    """

    __slots__ = (
        "_by_free_slots",
        "_costs",
        "_num_steps",
        "_sampled",
        "apart",
        "num_computed_tokens",
        "num_free_steps",
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
        self._costs = [
            (account, num_requests * OUTPUT_TOKEN_COST)
            for account, num_requests in Counter([state.account for state in states]).items()
        ]
        self._by_free_slots: list[list[RequestState]] = [[] for _ in range(BLOCK_TOKENS)]
        for state in states:
            self._by_free_slots[-state.num_computed_tokens % BLOCK_TOKENS].append(state)
        self._num_steps = 0
        self._sampled: list[Sequence[int]] = []
        self.num_computed_tokens = sum([state.num_computed_tokens for state in states])
        self.num_slots = sum([state.blocks.num_slots for state in states])
        self._count_free_steps()

    def __len__(self) -> int:
        return len(self.states) + len(self.apart)

    @property
    def full(self) -> list[RequestState]:
        """Those of `states` whose next token needs another block."""
        return [state for state in self._by_free_slots[self._num_steps % BLOCK_TOKENS] if state.is_full]

    @property
    def short(self) -> list[RequestState]:
        """Those of `states` that will need another block within a block's worth of steps."""
        return [state for state in self.states if state.is_full or state.is_short]

    @property
    def num_missing_blocks(self) -> int:
        """How many blocks the next tokens of all need."""
        return len(self.full) + sum([state.is_full for state in self.apart])

    def take_blocks(self, takers: Sequence[RequestState]) -> tuple[RowBlocks, ...]:
        """Gives a block to each of these; so many must be free."""
        if not takers:
            return ()
        new_blocks = [RowBlocks(state.row, state.blocks.append(1)) for state in takers if state.row is not None]
        self.num_slots += len(takers) * BLOCK_TOKENS
        self._count_free_steps()
        return tuple(new_blocks)

    def plan_with(self, new_blocks: tuple[RowBlocks, ...]) -> StepPlan:
        """A step of `states` for some of whom there are new blocks."""
        return StepPlan((), (), decoding=self.rows, new_blocks=new_blocks) if new_blocks else self.plan

    def append_sampled(self, token_ids: Sequence[int]) -> None:
        """A step has been made: one token for each of `states`, put aside."""
        self._sampled.append(token_ids)
        self._num_steps += 1
        self.num_free_steps -= 1
        self.num_computed_tokens += len(self.states)

    def settle(self) -> list[RequestState]:
        """Each of `states` takes in the tokens put aside for it, and pays; gives those that have filled a block."""
        sampled, num_steps = self._sampled, len(self._sampled)
        if not num_steps:
            return []
        self._sampled = []
        for state, token_ids in zip(self.states, zip(*sampled, strict=True), strict=True):
            state.token_ids.extend(token_ids)
        for account, cost in self._costs:
            account.charge(num_steps * cost)
        recent = range(self._num_steps - min(num_steps, BLOCK_TOKENS) + 1, self._num_steps + 1)
        return [state for step in recent for state in self._by_free_slots[step % BLOCK_TOKENS]]

    def _count_free_steps(self) -> None:
        self.num_free_steps = min([state.num_free_slots for state in self.states], default=0)

    def check_integrity(self) -> None:
        """Raises `EngineError` unless all have one token to compute, `states` in their rows, and at the right slot."""
        num_aside = len(self._sampled)
        num_computed = {state: state.num_computed_tokens + num_aside for state in self.states}
        if any(state.num_uncomputed_tokens != 1 for state in (*self.states, *self.apart)):
            raise EngineError("a request that decodes has not just its newest token to compute")
        if any(not state.is_plain or state.row != row for state, row in zip(self.states, self.rows, strict=True)):
            raise EngineError("a request that decodes has another row, or something to tell it")
        at_block_end = [state for state in self.states if num_computed[state] % BLOCK_TOKENS == 0]
        if self._by_free_slots[self._num_steps % BLOCK_TOKENS] != at_block_end:
            raise EngineError("a request that decodes is at another slot of its block than was counted")
        if any(state.blocks.num_slots < num_computed[state] + self.num_free_steps for state in self.states):
            raise EngineError("a request that decodes has fewer free slots than was counted")
        if self.num_computed_tokens != sum(num_computed.values()):
            raise EngineError("requests that decode have computed other tokens than were counted")
        if self.num_slots != sum(state.blocks.num_slots for state in self.states):
            raise EngineError("requests that decode have other blocks than were counted")
