"""What crosses between the engine and a backend: one `StepPlan` down, one `StepOutput` back, both frozen.

A request that runs holds a *row*, a stable index below `max_num_seqs`; the backend keeps the row's tokens, block table
and sampling parameters from one step to the next, so a plan carries only what changed. While the same rows go on
decoding nothing does: the plan of one step is that of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.sampling_params import SamplingParams

TokenMask = bytes | memoryview


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers of the KV cache that share a block table and a pool of blocks.

    Their queries see the last `window` positions, themselves included; None: all. A block of 16 tokens takes
    `block_bytes` over the `num_layers` layers of the group.
    """

    num_layers: int
    window: int | None
    block_bytes: int


@dataclass(frozen=True, slots=True)
class RowStart:
    """A request takes a row: for the first time, or again after a preemption.

    `token_ids` are all tokens known so far: `num_prompt_tokens` of the prompt, then output of an earlier run. While the
    row holds fewer than `min_total_tokens` tokens, the sampler must not choose any of `forbidden_token_ids` (this is
    `min_tokens`). A token that would complete one of `bad_words` in the output is never chosen. With
    `appends_sampled` the row takes in what is sampled for it; else it gets every token by `RowStep.new_token_ids`.
    """

    row: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    forbidden_token_ids: tuple[int, ...] = ()
    min_total_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    appends_sampled: bool = True


class RowStep(NamedTuple):
    """A row computes `num_tokens` tokens from position `num_computed_tokens` on.

    `new_block_ids` are appended to the row's block tables before the step (after a RowStart they are empty): one tuple
    for each layer group, or () when no group gets any. Where no query of the step sees a block, its id may be anything.
    `new_token_ids` are appended to the row's tokens before the step: those that became known without being sampled.
    With `samples`, the last of these tokens is the newest one known and the next is sampled after it; the backend
    appends it to the row's tokens, unless the row was started without `appends_sampled`. `mask` has a bit for each
    token that may be sampled: token t is bit t % 8 of byte t // 8, in whole words of 32 bits (None: all may).

    `scored_positions` lie among the tokens of this step: for each, the log probabilities of the token that follows it
    are wanted, with as many of the likeliest as the row's `prompt_logprobs` says. The token that follows must be known.

    A tuple, as one is made for each row and step: a frozen dataclass takes four times as long to make.
    """

    row: int
    num_computed_tokens: int
    num_tokens: int
    new_block_ids: tuple[tuple[int, ...], ...]
    samples: bool
    new_token_ids: tuple[int, ...] = ()
    scored_positions: range = range(0)
    mask: TokenMask | None = None


class RowBlocks(NamedTuple):
    """Blocks appended to the tables of a row that decodes, for tokens of this step or later ones; as in `RowStep`."""

    row: int
    new_block_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The keys and values in block `source` are copied to block `destination`, in every layer of the group."""

    source: int
    destination: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class BlockAddress:
    """A block in a layer group."""

    block_id: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """A block is to hold `pages`: bytes that the backend gave for a block of the same group, now or in another life."""

    address: BlockAddress
    pages: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: rows that start, then what the running rows compute: first those `decoding`, then those of `steps`.

    A row that is `decoding` computes its newest token, the only one that is left, and takes in what is sampled after
    it; `new_blocks` are for such rows. To say anything else of a row takes a `RowStep`. A row is in one of the two, and
    both may be empty.

    Before anything is computed, the bytes of `saves` are read, then those of `loads` written, then `copies` made, one
    after the other.
    """

    starts: tuple[RowStart, ...]
    steps: tuple[RowStep, ...]
    copies: tuple[BlockCopy, ...] = ()
    saves: tuple[BlockAddress, ...] = ()
    loads: tuple[BlockLoad, ...] = ()
    decoding: tuple[int, ...] = ()
    new_blocks: tuple[RowBlocks, ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.decoding) + sum(step.num_tokens for step in self.steps)

    @property
    def sampling_rows(self) -> tuple[int, ...]:
        """The rows for which a token is sampled, in batch order."""
        return (*self.decoding, *[step.row for step in self.steps if step.samples])


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token of a text, and how likely it was.

    Natural log probabilities of the model's own distribution: before temperature, penalties, biases, masks and filters.
    None is below -9999. `rank` is 1 for the likeliest token; `top_token_ids` are the likeliest in that order.
    """

    token_id: int
    logprob: float
    rank: int
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The tokens that follow the `scored_positions` of a row's step, in order."""

    row: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One token for each of the plan's `sampling_rows`, and one entry for each step with scored positions, in order.

    `logprobs` has an entry for each token, None where the row's sampling parameters ask for none; () where none does.
    `saved` are the bytes of each of the plan's `saves`.
    """

    token_ids: Sequence[int] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    scored: tuple[ScoredTokens, ...] = ()
    saved: tuple[bytes, ...] = field(default=(), repr=False)
