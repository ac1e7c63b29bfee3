"""What the scheduler tells the engine about a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Started:
    """A request entered for the first time, with `num_cached_tokens` of its prompt known to the KV cache."""

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int


class NewToken(NamedTuple):
    """A token that a request got in a step. After the `last` one its answer is complete.

    Log probabilities are there if asked for, those of the prompt with the first token.
    """

    request_id: str
    token_id: int
    last: bool = False
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class NewTokens:
    """The tokens of a step in batch order: first, in columns, those of requests that just go on, then the `others`.

    `token_ids[n]` is for the request `request_ids[n]`, and there is nothing else to say about it. `request_ids` is one
    and the same object as long as the same requests go on.
    """

    __slots__ = ("others", "request_ids", "token_ids")

    def __init__(self, request_ids: Sequence[str], token_ids: Sequence[int], others: list[NewToken]) -> None:
        self.request_ids = request_ids
        self.token_ids = token_ids
        self.others = others

    def __len__(self) -> int:
        return len(self.request_ids) + len(self.others)

    def __iter__(self) -> Iterator[NewToken]:
        yield from map(NewToken, self.request_ids, self.token_ids)
        yield from self.others


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What `schedule()` decided, in numbers. Recomputed tokens count as prompt tokens.

    `num_long_tokens` are prompt tokens of long prefills. `limit_s` is how long the step may take (None: no bound),
    `predicted_s` how long it should take (None: not known yet), `num_late` how many of those who wait will miss their
    TTFT target, `pressed` whether one that waits was about to.
    """

    num_prompt_tokens: int = 0
    num_preempted: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    num_evicted_blocks: int = 0
    num_copied_blocks: int = 0
    num_long_tokens: int = 0
    limit_s: float | None = None
    predicted_s: float | None = None
    num_late: int = 0
    pressed: bool = False
