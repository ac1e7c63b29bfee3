"""What changes about a request while it is in the scheduler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from octavo.kvcache.block_table import BlockTable
from octavo.kvcache.prefix_tree import TOKEN_TYPE, TokenIds
from octavo.request import Request
from octavo.step import RowStart, SampledToken, TokenLogprobs


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that a request got in a step. After the `last` one its answer is complete.

    Log probabilities are there if asked for, those of the prompt with the first token.
    """

    request_id: str
    token_id: int
    last: bool = False
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class RequestState:
    """A request in the scheduler: its tokens so far, how many of them are computed, its row and its blocks.

    `num_computed_tokens` chases `num_tokens`; whether that is a prompt, a reply or the recomputation after a preemption
    makes no difference. `num_start_tokens` is how many tokens were known when the request took its row,
    `num_row_tokens` how many the row knows by now: tokens added by `extend` reach it with the next step,
    `num_cached_tokens` how many of the prompt were known to the KV cache when it did so first (None: it has not).

    Where the request asks for `prompt_logprobs`, the prompt token after each of the first `num_scored_tokens` tokens
    has been scored; what came of it is kept until the first token is sampled.
    """

    __slots__ = (
        "blocks",
        "forbidden_token_ids",
        "min_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_row_tokens",
        "num_scored_tokens",
        "num_start_tokens",
        "prompt_logprobs",
        "request",
        "request_id",
        "row",
        "token_ids",
    )

    def __init__(self, request: Request, blocks: BlockTable) -> None:
        self.request = request
        self.request_id = request.request_id
        self.token_ids: TokenIds = array(TOKEN_TYPE, request.prompt_token_ids)
        self.num_cached_tokens: int | None = None
        self.num_computed_tokens = 0
        self.num_row_tokens = 0
        self.num_start_tokens = 0
        self.num_scored_tokens = 0
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
        self.num_computed_tokens = num_computed_tokens
        self.num_start_tokens = len(self.token_ids)
        return self.start()

    def fork(self, request_id: str, blocks: BlockTable, row: int | None) -> RequestState:
        """A request with the same tokens under a new id; with a row, also as far computed, in `blocks`."""
        twin = RequestState(replace(self.request, request_id=request_id), blocks)
        twin.token_ids = self.token_ids[:]
        twin.num_cached_tokens = self.num_cached_tokens
        twin.row = row
        if row is not None:
            twin.num_computed_tokens = twin.num_start_tokens = self.num_computed_tokens
        return twin

    @property
    def is_new_in_row(self) -> bool:
        """Whether the row has yet to be told of the request."""
        return self.num_row_tokens == 0

    def start(self) -> RowStart:
        """Tells the row of the request and all its tokens."""
        assert self.row is not None
        self.num_row_tokens = len(self.token_ids)
        return RowStart(
            self.row,
            self.token_ids[:],
            len(self.request.prompt_token_ids),
            self.request.sampling,
            self.forbidden_token_ids,
            self.min_total_tokens,
            self.request.bad_words,
            appends_sampled=not self.request.is_beam,
        )

    def append_sampled(self, token: SampledToken) -> NewToken:
        """Takes in a token that its row has sampled, and so knows; the first brings what is known of the prompt.

        A beam awaits another token instead, which follows from what is reported here.
        """
        if not self.request.is_beam:
            self.token_ids.append(token.token_id)
            self.num_row_tokens += 1
        prompt_logprobs, self.prompt_logprobs = tuple(self.prompt_logprobs), []
        return NewToken(self.request_id, token.token_id, logprobs=token.logprobs, prompt_logprobs=prompt_logprobs)

    def take_new_tokens(self) -> tuple[int, ...]:
        """The tokens that the row does not know yet; it is told of them now."""
        if self.num_row_tokens == len(self.token_ids):
            return ()
        new_token_ids = tuple(self.token_ids[self.num_row_tokens :])
        self.num_row_tokens = len(self.token_ids)
        return new_token_ids


def ending_token_ids(request: Request) -> tuple[int, ...]:
    """The tokens that would end the request, ascending: what `min_tokens` forbids."""
    ending = set(request.sampling.stop_token_ids)
    if not request.sampling.ignore_eos:
        ending |= request.eos_token_ids
    return tuple(sorted(ending))
