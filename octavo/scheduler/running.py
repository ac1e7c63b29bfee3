"""The requests that run: their rows, who decodes and who still computes known tokens, and who would have to go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.errors import EngineError
from octavo.scheduler.decode_batch import DecodeBatch
from octavo.scheduler.request_state import RequestState


class Running:
    """Requests that hold a row. Each decodes (one known token is left to compute), is a prefill (more are left), or
    awaits a token that it will be given (none is left).

    `num_reserved_blocks` are blocks that prefills will need for the tokens known already. They are kept for them: what
    has entered can always compute its known tokens and sample.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self.decoding: dict[str, RequestState] = {}
        self.prefilling: dict[str, RequestState] = {}
        self.awaiting: dict[str, RequestState] = {}
        self.num_reserved_blocks = 0
        self._batch: DecodeBatch | None = None

    def __len__(self) -> int:
        return len(self.decoding) + len(self.prefilling) + len(self.awaiting)

    def __iter__(self) -> Iterator[RequestState]:
        yield from self.decoding.values()
        yield from self.prefilling.values()
        yield from self.awaiting.values()

    @property
    def batch(self) -> DecodeBatch:
        """Those who decode. The same as long as it is the same requests, and there is nothing to tell their rows."""
        if self._batch is None:
            self._batch = DecodeBatch(self.decoding.values())
        return self._batch

    def still_decodes(self, batch: DecodeBatch) -> bool:
        """Whether that is still the batch."""
        return batch is self._batch

    def only_decodes(self, batch: DecodeBatch) -> bool:
        """Whether that is still the batch, and nobody else runs."""
        return batch is self._batch and not (self.prefilling or self.awaiting or batch.apart)

    def settle(self) -> list[RequestState]:
        """Those who decode take in the tokens of the steps just made; gives those that have filled a block."""
        return [] if self._batch is None else self._batch.settle()

    def regroup(self) -> None:
        """A request decodes now, does no longer, or its row has been told of all its tokens. All has been settled."""
        self._batch = None

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def has_free_row(self) -> bool:
        return bool(self._free_rows)

    def enter(self, state: RequestState, num_reserved_blocks: int) -> int:
        """Gives a request a row, as a prefill that will need so many blocks more."""
        state.num_reserved_blocks = num_reserved_blocks
        self.num_reserved_blocks += num_reserved_blocks
        self.prefilling[state.request_id] = state
        state.account.count_running(1)
        return self._free_rows.pop()

    def enter_fork(self, state: RequestState) -> int:
        """Gives a row to a request that has nothing to compute yet."""
        self.awaiting[state.request_id] = state
        state.account.count_running(1)
        return self._free_rows.pop()

    def use_reserved(self, state: RequestState, num_blocks: int) -> None:
        """The request got blocks that were kept for it."""
        state.num_reserved_blocks -= num_blocks
        self.num_reserved_blocks -= num_blocks

    def caught_up(self, state: RequestState) -> None:
        """All known tokens of a request have been computed: it gets one, or awaits one if it is a beam."""
        caught_up = self.awaiting if state.is_beam else self.decoding
        if state.request_id not in caught_up:
            self._forget(state)
            caught_up[state.request_id] = state
            self.regroup()

    def extended(self, state: RequestState) -> None:
        """A request got tokens that were not sampled."""
        self._forget(state)
        if state.num_uncomputed_tokens == 1:
            self.decoding[state.request_id] = state
            self.regroup()
            return
        self.prefilling[state.request_id] = state
        self.use_reserved(state, state.num_reserved_blocks - state.blocks.num_missing(len(state.token_ids)))

    def _forget(self, state: RequestState) -> None:
        for kind in (self.decoding, self.prefilling, self.awaiting):
            if kind.pop(state.request_id, None) is not None:
                self.regroup()
                return

    def leave(self, state: RequestState) -> None:
        """The request gives its row back."""
        assert state.row is not None
        self._forget(state)
        self.use_reserved(state, state.num_reserved_blocks)
        state.account.count_running(-1)
        self._free_rows.append(state.row)

    def check_integrity(self) -> None:
        """Raises `EngineError` unless every row is free or held by one request, and the reserved blocks add up."""
        rows = [state.row for state in self if state.row is not None]
        if sorted(self._free_rows + rows) != list(range(self._num_rows)) or len(rows) != len(self):
            raise EngineError("rows are neither free nor held by exactly one running request")
        if self.num_reserved_blocks != sum(state.num_reserved_blocks for state in self):
            raise EngineError("reserved blocks do not add up")
        if any(state.num_reserved_blocks for state in self.decoding.values()):
            raise EngineError("blocks are reserved for a request that decodes")
        if {*self.batch.states, *self.batch.apart} != set(self.decoding.values()):
            raise EngineError("the batch that decodes is not made of the requests that do")
        self.batch.check_integrity()


def least_wasteful(candidates: Iterable[RequestState]) -> RequestState | None:
    """Whom to preempt: the most expendable, then whoever loses least, then the latest arrival. None: nobody may be.

    Lost is what was computed here and was not found in the prefix cache. A request that was preempted before is spared
    until it has got a token since, so each time it runs brings it further, and it ends however short memory is.
    """
    unspared = [state for state in candidates if len(state.token_ids) > state.num_tokens_when_preempted]
    return min(unspared, key=_loss, default=None)


def _loss(state: RequestState) -> tuple[int, int, int]:
    return (
        -state.expendability,
        state.num_computed_tokens - state.num_entry_tokens,
        -state.rank[2],
    )
