"""The rows of running requests: what the backend remembers of each from one step to the next.

A row is a fixed place in a few numpy arrays. A step picks the rows it runs and gathers from them, without a Python
loop over tokens and with next to none over requests. Most steps only go on from the one before: see `decoding.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.backends.native.decoding import Decoding
from octavo.backends.native.logit_rows import IndexArray, LogitRows, logit_rows_of
from octavo.backends.native.sampling_rows import SamplingRows
from octavo.backends.native.step_arrays import Int32Array, StepArrays
from octavo.config import BLOCK_TOKENS
from octavo.errors import StepError
from octavo.step import RowBlocks, RowStart, StepPlan


class Rows:
    """Tokens, block tables and sampling parameters of up to `max_num_seqs` requests of up to `max_model_len` tokens.

    `block_tables` [layer groups, rows, blocks of a row] are what a step's `table_rows` pick from.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, num_groups: int, vocab_size: int) -> None:
        self.max_num_seqs = max_num_seqs
        self._max_blocks = -(-max_model_len // BLOCK_TOKENS)
        self._token_ids: Int32Array = np.zeros(
            (max_num_seqs, max_model_len + 1), np.int32
        )  # the last is never computed
        self._num_tokens: IndexArray = np.zeros(max_num_seqs, np.int64)
        self._appends_sampled: npt.NDArray[np.bool_] = np.ones(max_num_seqs, np.bool_)
        self.block_tables: Int32Array = np.zeros((num_groups, max_num_seqs, self._max_blocks), np.int32)
        self._num_blocks = [[0] * num_groups for _ in range(max_num_seqs)]
        self._sampling = SamplingRows(self._token_ids, vocab_size)
        self._decoding: Decoding | None = None

    def start(self, start: RowStart) -> None:
        """A request takes the row: its tokens and parameters replace whatever was there, its block table is empty."""
        self._stop_decoding()
        row, num_tokens = start.row, len(start.token_ids)
        if not 0 <= row < self.max_num_seqs:
            raise StepError(f"row {row} does not exist; there are {self.max_num_seqs}")
        if num_tokens > self._token_ids.shape[1]:
            raise StepError(f"row {row} starts with {num_tokens} tokens; it holds {self._token_ids.shape[1]}")
        self._token_ids[row, :num_tokens] = start.token_ids
        self._num_tokens[row] = num_tokens
        self._appends_sampled[row] = start.appends_sampled
        self._num_blocks[row] = [0] * len(self.block_tables)
        self._sampling.start(start)

    def decoding(self, plan: StepPlan, arrays: StepArrays) -> Decoding | None:
        """What makes the step, and may make the next, if it only decodes rows that choose their tokens alike."""
        if self._decoding is not None and self._decoding.continued_by(plan):
            for row, new_block_ids in plan.new_blocks:
                self._append_blocks(row, new_block_ids)
            return self._decoding
        if not plan.decoding or plan.steps or plan.copies or self._sampling.biases_may_change:
            return None
        self.gather(plan, arrays)
        self._decoding = Decoding(plan.decoding, arrays, self._token_ids, self._num_tokens)
        return self._decoding

    def gather(self, plan: StepPlan, arrays: StepArrays) -> LogitRows:
        """Fills `arrays` with what the plan computes; says where each row of logits belongs."""
        self._stop_decoding()
        arrays.set_copies(plan.copies)
        rows, starts, counts = self._spans(plan)
        ends = starts + counts
        self._check(rows, starts, ends)
        new_blocks = [RowBlocks(step.row, step.new_block_ids) for step in plan.steps if step.new_block_ids]
        for row, new_block_ids in (*plan.new_blocks, *new_blocks):
            self._append_blocks(row, new_block_ids)
        num_tokens = self._gather_tokens(rows, starts, counts, arrays)
        arrays.table_rows[: len(rows)] = rows
        num_decoding = len(plan.decoding)
        logit_rows = logit_rows_of(rows[:num_decoding], ends[:num_decoding], plan.steps)
        self._check_scored(logit_rows, num_tokens)
        arrays.logit_rows[: len(logit_rows)] = logit_rows.token_indices
        self._sampling.gather(logit_rows, arrays)
        arrays.set_counts(num_tokens=num_tokens, num_requests=len(rows), num_logit_rows=len(logit_rows))
        return logit_rows

    def _spans(self, plan: StepPlan) -> tuple[IndexArray, IndexArray, IndexArray]:
        """The rows of a plan, in batch order: from which position on each computes how many tokens.

        Tokens that were not sampled become known.
        """
        steps, num_decoding = plan.steps, len(plan.decoding)
        rows = np.array([*plan.decoding, *[step.row for step in steps]], np.int64)
        self._check_exist(rows)
        for step in steps:
            if step.new_token_ids:
                self._append_known(step.row, step.new_token_ids)
        starts, counts = np.empty_like(rows), np.ones_like(rows)
        starts[:num_decoding] = self._num_tokens[rows[:num_decoding]] - 1
        starts[num_decoding:] = [step.num_computed_tokens for step in steps]
        counts[num_decoding:] = [step.num_tokens for step in steps]
        return rows, starts, counts

    def append_sampled(self, logit_rows: LogitRows, arrays: StepArrays) -> None:
        """Each row that sampled now knows one more token, unless it does not want it."""
        rows, token_ids = logit_rows.rows, arrays.sampled_token_ids[: len(logit_rows)]
        wanted = ~logit_rows.scored & self._appends_sampled[rows]
        rows, token_ids = rows[wanted], token_ids[wanted]
        num_tokens = self._num_tokens[rows]
        self._token_ids[rows, num_tokens] = token_ids
        self._num_tokens[rows] = num_tokens + 1

    def _stop_decoding(self) -> None:
        """The next step is not one more of those that only decode: takes in what these have sampled."""
        if self._decoding is not None:
            self._decoding.tell()
            self._decoding = None

    def _append_known(self, row: int, token_ids: tuple[int, ...]) -> None:
        """Tokens that were not sampled."""
        first = self._num_tokens[row]
        last = first + len(token_ids)
        if last > self._token_ids.shape[1]:
            raise StepError(f"row {row} is given {last} tokens; it holds {self._token_ids.shape[1]}")
        self._token_ids[row, first:last] = token_ids
        self._num_tokens[row] = last

    def _check(self, rows: IndexArray, starts: IndexArray, ends: IndexArray) -> None:
        """Only tokens that rows hold can be computed."""
        held = np.minimum(self._num_tokens[rows], self._token_ids.shape[1] - 1)
        if not ((starts >= 0) & (starts <= ends) & (ends <= held)).all():
            raise StepError(
                f"rows {rows.tolist()} compute tokens {starts.tolist()} to {ends.tolist()}, but hold {held.tolist()}"
            )

    def _check_exist(self, rows: IndexArray) -> None:
        if len(rows) > self.max_num_seqs or not ((rows >= 0) & (rows < self.max_num_seqs)).all():
            raise StepError(f"rows {rows.tolist()} do not all exist; there are {self.max_num_seqs}")

    def _check_scored(self, logit_rows: LogitRows, num_tokens: int) -> None:
        """Only tokens that are known can be scored, after tokens of this step."""
        scored = logit_rows.scored
        known = logit_rows.positions < self._num_tokens[logit_rows.rows]
        indices = logit_rows.token_indices
        ascends = (indices[1:] > indices[:-1]).all() and (indices[:1] >= 0).all()
        if len(indices) > num_tokens or not (known | ~scored).all() or not ascends:
            raise StepError(
                f"rows {logit_rows.rows[scored].tolist()} score tokens {logit_rows.positions[scored].tolist()}, which "
                "they do not hold or do not compute in this step"
            )

    def _append_blocks(self, row: int, block_ids: tuple[tuple[int, ...], ...]) -> None:
        num_blocks = self._num_blocks[row]
        if len(block_ids) != len(num_blocks):
            raise StepError(f"row {row} is given blocks of {len(block_ids)} layer groups; there are {len(num_blocks)}")
        for group, new_block_ids in enumerate(block_ids):
            first, last = num_blocks[group], num_blocks[group] + len(new_block_ids)
            if last > self._max_blocks:
                raise StepError(f"row {row} is given {last} blocks; it holds {self._max_blocks}")
            for place, block_id in enumerate(new_block_ids, first):
                self.block_tables[group, row, place] = block_id
            num_blocks[group] = last

    def _gather_tokens(self, rows: IndexArray, starts: IndexArray, counts: IndexArray, arrays: StepArrays) -> int:
        query_starts = arrays.query_starts[: len(rows) + 1]
        np.cumsum(counts, out=query_starts[1:])
        num_tokens = int(query_starts[-1])
        if num_tokens > len(arrays.token_ids):
            raise StepError(f"{num_tokens} tokens are more than a step can hold ({len(arrays.token_ids)})")
        positions = np.arange(num_tokens) + np.repeat(starts - query_starts[:-1], counts)
        arrays.positions[:num_tokens] = positions
        arrays.token_ids[:num_tokens] = self._token_ids[np.repeat(rows, counts), positions]
        return num_tokens
