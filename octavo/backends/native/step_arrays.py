"""The arrays of a step, allocated once: the library gets the same pointers every time, only counts change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.backends.native import abi
from octavo.backends.native.library import FloatArray
from octavo.step import BlockCopy

Int32Array = npt.NDArray[np.int32]


class StepArrays:
    """Room for `max_tokens` tokens of `max_requests` requests, and for logit rows.

    `block_tables` [layer groups, rows, blocks of a row] are the caller's to change; `table_rows` picks from them.
    Fill the beginning of each array and the counts of `struct`, then run the program with `struct`.
    """

    def __init__(self, *, max_tokens: int, max_requests: int, block_tables: Int32Array, max_logit_rows: int) -> None:
        self.token_ids: Int32Array = np.zeros(max_tokens, np.int32)
        self.positions: Int32Array = np.zeros(max_tokens, np.int32)
        self.query_starts: Int32Array = np.zeros(max_requests + 1, np.int32)
        self.block_tables = block_tables
        self.table_rows: Int32Array = np.zeros(max_requests, np.int32)
        self.logit_rows: Int32Array = np.zeros(max_logit_rows, np.int32)
        self.temperatures: FloatArray = np.zeros(max_logit_rows, np.float32)
        self.top_ks: Int32Array = np.zeros(max_logit_rows, np.int32)
        self.top_ps: FloatArray = np.ones(max_logit_rows, np.float32)
        self.min_ps: FloatArray = np.zeros(max_logit_rows, np.float32)
        self.seeds: npt.NDArray[np.uint64] = np.zeros(max_logit_rows, np.uint64)
        self.sample_positions: npt.NDArray[np.int64] = np.zeros(max_logit_rows, np.int64)
        self.bias_starts: Int32Array = np.zeros(max_logit_rows + 1, np.int32)
        self.bias_token_ids: Int32Array = np.zeros(0, np.int32)
        self.bias_values: FloatArray = np.zeros(0, np.float32)
        self.copies: Int32Array = np.zeros((3, 0), np.int32)
        self.sampled_token_ids: Int32Array = np.zeros(max_logit_rows, np.int32)
        self.struct = abi.Step(
            num_table_rows=block_tables.shape[1],
            max_blocks=block_tables.shape[2],
            token_ids=self.token_ids.ctypes.data,
            positions=self.positions.ctypes.data,
            query_starts=self.query_starts.ctypes.data,
            block_tables=self.block_tables.ctypes.data,
            table_rows=self.table_rows.ctypes.data,
            logit_rows=self.logit_rows.ctypes.data,
            temperatures=self.temperatures.ctypes.data,
            top_ks=self.top_ks.ctypes.data,
            top_ps=self.top_ps.ctypes.data,
            min_ps=self.min_ps.ctypes.data,
            seeds=self.seeds.ctypes.data,
            sample_positions=self.sample_positions.ctypes.data,
            bias_starts=self.bias_starts.ctypes.data,
            sampled_token_ids=self.sampled_token_ids.ctypes.data,
        )

    def set_counts(self, *, num_tokens: int, num_requests: int, num_logit_rows: int) -> None:
        """How much of the arrays is filled."""
        self.struct.num_tokens = num_tokens
        self.struct.num_requests = num_requests
        self.struct.num_logit_rows = num_logit_rows

    def set_copies(self, copies: Sequence[BlockCopy]) -> None:
        """The blocks to copy before the step."""
        self.struct.num_copies = len(copies)
        if copies:
            fields = [(copy.group, copy.source, copy.destination) for copy in copies]
            self.copies = np.array(fields, np.int32).T.copy()
            groups, sources, destinations = (row.ctypes.data for row in self.copies)
            self.struct.copy_groups = groups
            self.struct.copy_sources, self.struct.copy_destinations = sources, destinations

    def set_biases(self, token_ids: Int32Array, values: FloatArray) -> None:
        """The biases that `bias_starts` points into; kept until the next call."""
        self.bias_token_ids, self.bias_values = token_ids, values
        self.struct.bias_token_ids = token_ids.ctypes.data
        self.struct.bias_values = values.ctypes.data
