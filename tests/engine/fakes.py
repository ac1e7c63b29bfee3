"""A backend and a tokenizer that cost nothing and are strict about what they are given."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from octavo.config import BLOCK_TOKENS
from octavo.sampling_params import SamplingParams
from octavo.step import BlockAddress, RowStart, RowStep, StepOutput, StepPlan, TokenLogprobs, TokenMask

VOCAB_SIZE = 97
EOS = 1
PAGE_BYTES = 8 * BLOCK_TOKENS
_MODULUS = 2**61 - 1


def extend(state: int, token_id: int) -> int:
    """What a slot holds: a number that depends on this token and all before it, as keys and values do."""
    return (state * 1_000_003 + token_id + 7) % _MODULUS


def next_token(state: int, num_tokens: int, sampling: SamplingParams, forbidden: Sequence[int]) -> int:
    """The token after a history: a pure function of it, of the seed if not greedy, and of what is forbidden."""
    choice = extend(state, 0 if sampling.greedy else (sampling.seed or 0) % _MODULUS + num_tokens) % VOCAB_SIZE
    while choice in forbidden:
        choice = (choice + 1) % VOCAB_SIZE
    return choice


def is_set(mask: TokenMask, token_id: int) -> bool:
    return bool(mask[token_id // 8] >> token_id % 8 & 1)


def logprobs_after(state: int) -> list[float]:
    """Log probabilities of all tokens after a history: a pure function of it, far from ties."""
    logits = [extend(state, token_id) % 10_007 / 2_000 for token_id in range(VOCAB_SIZE)]
    total = log(sum(map(exp, logits)))
    return [logit - total for logit in logits]


def likeliest_after(state: int, count: int, token_id: int | None = None) -> TokenLogprobs:
    """The `count` likeliest tokens after a history, reported of `token_id` (None: of the likeliest itself)."""
    logprobs = logprobs_after(state)
    ranking = sorted(range(VOCAB_SIZE), key=lambda token_id: -logprobs[token_id])
    chosen = ranking[0] if token_id is None else token_id
    top = tuple(ranking[:count])
    return TokenLogprobs(
        chosen, logprobs[chosen], 1 + ranking.index(chosen), top, tuple(logprobs[token_id] for token_id in top)
    )


def continuation(prompt: Sequence[int], sampling: SamplingParams, count: int, ending: Sequence[int] = ()) -> list[int]:
    """What the fake model says after a prompt, made without engine, blocks or rows."""
    tokens, state = list(prompt), 0
    for token_id in prompt:
        state = extend(state, token_id)
    for index in range(count):
        tokens.append(next_token(state, len(tokens), sampling, ending if index < sampling.min_tokens else ()))
        state = extend(state, tokens[-1])
    return tokens[len(prompt) :]


@dataclass
class _Row:
    start: RowStart
    token_ids: list[int]
    tables: list[list[int]]
    num_computed: int | None = None


class FakeExecutor:
    """Keeps a KV cache of one number a slot, and checks that every slot a row reads holds that row's own history.

    A block written by one row and held by another, a slot read before it was written, a position computed twice or
    skipped, a prefix that is not the row's own: all fail here, in the step that does it. `failures` are raised by the
    next steps, before anything is copied or computed. `window_groups` are layer groups beside the first, each with a
    number of blocks and how many positions a query sees (None: all); what it does not see is not checked.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        window_groups: Sequence[tuple[int, int | None]] = (),
    ) -> None:
        self.groups = [(num_blocks, None), *window_groups]
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.slots: dict[tuple[int, int, int], int] = {}
        self.rows: dict[int, _Row] = {}
        self.plans: list[StepPlan] = []
        self.failures: list[Exception] = []
        self.closed = False

    def execute(self, plan: StepPlan) -> StepOutput:
        assert not self.closed
        self.plans.append(plan)
        for start in plan.starts:
            assert 0 <= start.row < self.max_num_seqs
            self.rows[start.row] = _Row(start, list(start.token_ids), [[] for _ in self.groups])
        if self.failures:
            raise self.failures.pop(0)
        saved = tuple([self._pages(address) for address in plan.saves])
        for load in plan.loads:
            for slot, state in enumerate(array("q", load.pages)):
                self.slots[load.address.group, load.address.block_id, slot] = state
        for copy in plan.copies:
            for slot in range(BLOCK_TOKENS):
                self.slots[copy.group, copy.destination, slot] = self.slots.get((copy.group, copy.source, slot), -1)
        steps = [*self._decode_steps(plan), *plan.steps]
        self._check_batch(plan, steps)
        sampled = [token for step in steps if (token := self._compute(step)) is not None]
        return StepOutput(
            [token_id for token_id, _ in sampled], tuple(logprobs for _, logprobs in sampled), saved=saved
        )

    def prepare(self, num_bytes: int) -> int:
        return 0

    def _pages(self, address: BlockAddress) -> bytes:
        slots = [self.slots.get((address.group, address.block_id, slot), -1) for slot in range(BLOCK_TOKENS)]
        return array("q", slots).tobytes()

    def close(self) -> None:
        self.closed = True

    def _decode_steps(self, plan: StepPlan) -> list[RowStep]:
        """What the rows compute that decode."""
        new_block_ids = dict(plan.new_blocks)
        assert new_block_ids.keys() <= set(plan.decoding)
        return [
            RowStep(row, len(self.rows[row].token_ids) - 1, 1, new_block_ids.get(row, ()), True)
            for row in plan.decoding
        ]

    def _check_batch(self, plan: StepPlan, steps: list[RowStep]) -> None:
        assert plan.num_tokens <= self.max_num_batched_tokens
        rows = [step.row for step in steps]
        assert len(rows) == len(set(rows))
        assert {start.row for start in plan.starts} <= set(rows), "a row starts without a step"
        assert all(self.rows[row].start.appends_sampled for row in plan.decoding)
        for step in steps:
            row = self.rows[step.row]
            row.token_ids += step.new_token_ids
            for table, new_block_ids in zip(row.tables, step.new_block_ids, strict=bool(step.new_block_ids)):
                table += new_block_ids
        for group, (num_blocks, _) in enumerate(self.groups):
            tables = {step.row: self._seen_blocks(group, step) for step in steps}
            holders = Counter(block_id for table in tables.values() for block_id in table)
            assert all(0 <= block_id < num_blocks for block_id in holders)
            for step in steps:
                written = self.rows[step.row].tables[group][step.num_computed_tokens // BLOCK_TOKENS :]
                assert all(holders[block_id] == 1 for block_id in written), "a block is written that another row holds"

    def _seen_blocks(self, group: int, step: RowStep) -> list[int]:
        first = self._first_seen(group, step.num_computed_tokens)
        return self.rows[step.row].tables[group][first // BLOCK_TOKENS :]

    def _first_seen(self, group: int, position: int) -> int:
        """The first position that the query at `position` sees."""
        window = self.groups[group][1]
        return 0 if window is None else max(0, position - window + 1)

    def _compute(self, step: RowStep) -> tuple[int, TokenLogprobs | None] | None:
        row = self.rows[step.row]
        if row.num_computed is None:
            row.num_computed = step.num_computed_tokens  # found by the KV cache
        assert step.num_tokens > 0 and step.num_computed_tokens == row.num_computed
        end = row.num_computed + step.num_tokens
        assert end <= len(row.token_ids) and step.samples == (end == len(row.token_ids))
        num_blocks = -(-end // BLOCK_TOKENS)
        needed = (num_blocks, num_blocks + 1)  # the next may be there already
        assert all(len(table) in needed for table in row.tables), "a row has other blocks than its tokens need"
        state = self._read(row, row.num_computed)
        for position in range(row.num_computed, end):
            state = extend(state, row.token_ids[position])
            for group in range(len(self.groups)):
                self.slots[self._slot(row, group, position)] = state
        row.num_computed = end
        if not step.samples:
            return None
        forbidden = row.start.forbidden_token_ids if end < row.start.min_total_tokens else ()
        if step.mask is not None:
            forbidden = [*forbidden, *(token_id for token_id in range(VOCAB_SIZE) if not is_set(step.mask, token_id))]
        sampling = row.start.sampling
        token_id = next_token(state, end, sampling, forbidden)
        if row.start.appends_sampled:
            row.token_ids.append(token_id)
        logprobs = None if sampling.logprobs is None else likeliest_after(state, sampling.logprobs, token_id)
        return token_id, logprobs

    def _read(self, row: _Row, num_tokens: int) -> int:
        state = 0
        first_seen = [self._first_seen(group, num_tokens) for group in range(len(self.groups))]
        for position in range(num_tokens):
            state = extend(state, row.token_ids[position])
            for group, first in enumerate(first_seen):
                slot = self.slots.get(self._slot(row, group, position)) if position >= first else state
                assert slot == state, "a slot holds another request's token"
        return state

    @staticmethod
    def _slot(row: _Row, group: int, position: int) -> tuple[int, int, int]:
        return group, row.tables[group][position // BLOCK_TOKENS], position % BLOCK_TOKENS


class FakeDetokenizer:
    def __init__(self, poison: int | None) -> None:
        self._poison = poison

    def append(self, token_id: int) -> str:
        if token_id == self._poison:
            raise ValueError("poison")
        return text_of([token_id])

    def flush(self) -> str:
        return ""


def text_of(token_ids: Sequence[int]) -> str:
    return "".join(chr(ord("0") + token_id) for token_id in token_ids)


class FakeTokenizer:
    """One character a token. `poison`, if given, is a token whose detokenisation raises."""

    vocab_size = VOCAB_SIZE
    bos_token_id: int | None = None
    eos_token_ids = frozenset({EOS})
    has_chat_template = True
    chat_template = None

    def __init__(self, poison: int | None = None) -> None:
        self._poison = poison

    def also_ending_with(self, eos_token_ids: Collection[int]) -> FakeTokenizer:
        assert not eos_token_ids
        return self

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) - ord("0") for character in text]

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any) -> str:
        return "".join(message["content"] for message in messages) + ">"

    def token_bytes(self, token_id: int) -> bytes:
        return text_of([token_id]).encode()

    def encode_rendered(self, prompt: str) -> list[int]:
        return self.encode(prompt)

    def detokenizer(self, skip_special_tokens: bool) -> FakeDetokenizer:
        return FakeDetokenizer(self._poison)
