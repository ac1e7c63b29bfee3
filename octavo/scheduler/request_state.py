"""What changes about a request while it is in the scheduler."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from octavo.config import BLOCK_TOKENS
from octavo.kvcache.block_table import BlockTable
from octavo.kvcache.prefix_tree import TOKEN_TYPE, TokenIds
from octavo.request import Request
from octavo.scheduler.accounts import Account
from octavo.scheduler.outcome import NewToken
from octavo.step import RowStart, TokenLogprobs

Rank = tuple[int, int, int]
"""Due time in tenths of a second, cached tokens negated, number of arrival: less goes first, and no two are equal."""

NO_RANK: Rank = (0, 0, 0)


class Line(Protocol):
    """Where a request waits."""

    def add(self, state: RequestState) -> None: ...
    def remove(self, state: RequestState) -> None: ...


class RequestState:
    """A request in the scheduler: its tokens so far, how many of them are computed, its row and its blocks.

    `num_computed_tokens` chases `num_tokens`; whether that is a prompt, a reply or the recomputation after a preemption
    makes no difference. What is kept is by how much it is behind, `num_uncomputed_tokens`, and how many of the tokens
    the row has yet to be told, `num_untold_tokens`: both stay the same while a request decodes.
    `num_start_tokens` is how many tokens were known when the request took its row,
    `num_cached_tokens` how many of the prompt were known to the KV cache when it did so first (None: it has not).

    At most `max_computed_tokens` are ever computed: never the last one that the request may have.

    `account` pays for what is computed, and has paid for `num_charged_tokens`; `rank` is the place among that account's
    requests; `line` is where the request waits, if it does. `num_entry_tokens` is how many of its tokens the KV cache
    knew when it entered, or, while it waits, when it was looked up. `num_reserved_blocks` are kept for it,
    `num_tokens_when_preempted` is how many tokens it had when it was preempted last.

    Where the request asks for `prompt_logprobs`, the prompt token after each of the first `num_scored_tokens` tokens
    has been scored; what came of it is kept until the first token is sampled.
    """

    __slots__ = (
        "account",
        "blocks",
        "expendability",
        "forbidden_token_ids",
        "is_beam",
        "line",
        "max_computed_tokens",
        "min_total_tokens",
        "num_cached_tokens",
        "num_charged_tokens",
        "num_entry_tokens",
        "num_preemptions",
        "num_reserved_blocks",
        "num_scored_tokens",
        "num_start_tokens",
        "num_tokens_when_preempted",
        "num_uncomputed_tokens",
        "num_untold_tokens",
        "prompt_logprobs",
        "rank",
        "request",
        "request_id",
        "row",
        "token_ids",
    )

    def __init__(self, request: Request, blocks: BlockTable, account: Account, expendability: int = 0) -> None:
        self.request = request
        self.request_id = request.request_id
        self.is_beam = request.is_beam
        self.token_ids: TokenIds = array(TOKEN_TYPE, request.prompt_token_ids)
        self.account = account
        self.expendability = expendability
        self.rank = NO_RANK
        self.line: Line | None = None
        self.num_cached_tokens: int | None = None
        self.num_charged_tokens = 0
        self.num_entry_tokens = 0
        self.num_preemptions = 0
        self.num_reserved_blocks = 0
        self.num_tokens_when_preempted = 0
        self.num_uncomputed_tokens = self.num_untold_tokens = len(self.token_ids)
        self.num_start_tokens = 0
        self.num_scored_tokens = 0
        self.max_computed_tokens = len(self.token_ids) + (request.sampling.max_tokens or 1) - 1
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.row: int | None = None
        self.blocks = blocks
        self.min_total_tokens = 0
        self.forbidden_token_ids: tuple[int, ...] = ()
        if request.sampling.min_tokens:
            self.min_total_tokens = len(self.token_ids) + request.sampling.min_tokens
            self.forbidden_token_ids = ending_token_ids(request)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_computed_tokens(self) -> int:
        return len(self.token_ids) - self.num_uncomputed_tokens

    @property
    def num_uncached_tokens(self) -> int:
        """What is left to compute of the tokens known now, the prefix cache taken into account."""
        return len(self.token_ids) - max(self.num_computed_tokens, self.num_entry_tokens)

    def note_preemption(self) -> None:
        self.num_preemptions += 1
        self.num_tokens_when_preempted = len(self.token_ids)

    def scored_positions(self, num_tokens: int) -> range:
        """Which of the next `num_tokens` tokens are followed by a prompt token that has yet to be scored."""
        if self.request.sampling.prompt_logprobs is None:
            return range(0)
        first = max(self.num_computed_tokens, self.num_scored_tokens)
        last = min(self.num_computed_tokens + num_tokens, len(self.request.prompt_token_ids) - 1)
        return range(first, max(first, last))

    @property
    def max_skipped_tokens(self) -> int:
        """How many tokens may be left out of the computation because they are in a cache.

        The last known token is always computed, and so are those that a prompt token has yet to be scored after.
        """
        if self.request.sampling.prompt_logprobs is None:
            return len(self.token_ids) - 1
        return min(self.num_scored_tokens, len(self.token_ids) - 1)

    def take_row(self, row: int, num_computed_tokens: int) -> RowStart:
        self.row = row
        self.num_entry_tokens = num_computed_tokens
        self.num_start_tokens = len(self.token_ids)
        self.num_uncomputed_tokens = self.num_start_tokens - num_computed_tokens
        return self.start()

    def fork(self, request_id: str, blocks: BlockTable, account: Account, rank: Rank) -> RequestState:
        """A request with the same tokens under a new id, which holds nothing yet."""
        twin = RequestState(replace(self.request, request_id=request_id), blocks, account, self.expendability)
        twin.rank = rank
        twin.token_ids = self.token_ids[:]
        twin.num_uncomputed_tokens = twin.num_untold_tokens = len(twin.token_ids)
        twin.num_cached_tokens = self.num_cached_tokens
        twin.num_charged_tokens = len(self.token_ids)
        return twin

    def take_row_of_fork(self, row: int, num_computed_tokens: int) -> None:
        """The request, whose tokens another has computed, holds a row, which has yet to be told of it."""
        self.row = row
        self.num_start_tokens = self.num_entry_tokens = num_computed_tokens
        self.num_uncomputed_tokens = len(self.token_ids) - num_computed_tokens

    @property
    def is_new_in_row(self) -> bool:
        """Whether the row has yet to be told of the request."""
        return self.num_untold_tokens == len(self.token_ids)

    @property
    def num_free_slots(self) -> int:
        """How many more tokens can be computed without another block."""
        return self.blocks.num_slots - self.num_computed_tokens

    @property
    def is_full(self) -> bool:
        """Whether the next token to compute needs another block."""
        return self.num_free_slots == 0

    @property
    def is_short(self) -> bool:
        """Whether one of the next few tokens, of which a block has room for all, may need another block."""
        return self.num_free_slots < BLOCK_TOKENS and self.blocks.num_slots < self.max_computed_tokens

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell its row while it decodes."""
        return not (self.num_untold_tokens or self.is_beam or self.request.constraint is not None)

    @property
    def awaits_token(self) -> bool:
        """Whether there is nothing to compute until it is given its next token."""
        return self.num_uncomputed_tokens == 0

    def start(self) -> RowStart:
        """Tells the row of the request and all its tokens."""
        assert self.row is not None
        self.num_untold_tokens = 0
        return RowStart(
            self.row,
            self.token_ids[:],
            len(self.request.prompt_token_ids),
            self.request.sampling,
            self.forbidden_token_ids,
            self.min_total_tokens,
            self.request.bad_words,
            appends_sampled=not self.is_beam,
        )

    def leave_row(self) -> None:
        """What has been computed is gone with the row."""
        self.row = None
        self.num_uncomputed_tokens = len(self.token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Takes in tokens that were not sampled."""
        self.token_ids.extend(token_ids)
        self.num_uncomputed_tokens += len(token_ids)
        self.num_untold_tokens += len(token_ids)

    def append_sampled(self, token_id: int, logprobs: TokenLogprobs | None) -> NewToken:
        """Takes in a token that its row has sampled, and so knows; the first brings what is known of the prompt.

        A beam awaits another token instead, which follows from what is reported here.
        """
        if not self.is_beam:
            self.token_ids.append(token_id)
            self.num_uncomputed_tokens += 1
        if not self.prompt_logprobs:
            return NewToken(self.request_id, token_id, False, logprobs)
        prompt_logprobs, self.prompt_logprobs = tuple(self.prompt_logprobs), []
        return NewToken(self.request_id, token_id, False, logprobs, prompt_logprobs)

    def take_new_tokens(self) -> tuple[int, ...]:
        """The tokens that the row does not know yet; it is told of them now."""
        if not self.num_untold_tokens:
            return ()
        new_token_ids = tuple(self.token_ids[-self.num_untold_tokens :])
        self.num_untold_tokens = 0
        return new_token_ids


def ending_token_ids(request: Request) -> tuple[int, ...]:
    """The tokens that would end the request, ascending: what `min_tokens` forbids."""
    ending = set(request.sampling.stop_token_ids)
    if not request.sampling.ignore_eos:
        ending |= request.eos_token_ids
    return tuple(sorted(ending))
