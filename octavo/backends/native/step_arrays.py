"""The arrays of a step, allocated once: the library gets the same pointers every time, only counts change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from octavo.backends.native import abi
from octavo.backends.native.library import FloatArray
from octavo.step import BlockCopy

Int32Array = npt.NDArray[np.int32]
MaskArray = npt.NDArray[np.uint32]
SamplingArray = npt.NDArray[np.void]

SAMPLING = np.dtype(abi.Sampling)


def greedy_sampling(count: int) -> SamplingArray:
    """Entries that draw the likeliest token and report nothing."""
    sampling: SamplingArray = np.zeros(count, SAMPLING)
    sampling["top_p"] = 1
    sampling["repetition_penalty"] = 1
    sampling["scored_token"] = -1
    sampling["num_logprobs"] = -1
    return sampling


class StepArrays:
    """Room for `max_tokens` tokens of `max_requests` requests, and for logit rows.

    `block_tables` [layer groups, rows, blocks of a row] are the caller's to change; `table_rows` picks from them.
    `reported` are the logit rows whose log probabilities are wanted.
    Fill the beginning of each array and the counts of `struct`, then run the program with `struct`.
    """

    def __init__(self, *, max_tokens: int, max_requests: int, block_tables: Int32Array, max_logit_rows: int) -> None:
        self.token_ids: Int32Array = np.zeros(max_tokens, np.int32)
        self.positions: Int32Array = np.zeros(max_tokens, np.int32)
        self.query_starts: Int32Array = np.zeros(max_requests + 1, np.int32)
        self.block_tables = block_tables
        self.table_rows: Int32Array = np.zeros(max_requests, np.int32)
        self.logit_rows: Int32Array = np.zeros(max_logit_rows, np.int32)
        self.sampling = greedy_sampling(max_logit_rows)
        self.reported: list[int] = []
        self.bias_token_ids: Int32Array = np.zeros(0, np.int32)
        self.bias_values: FloatArray = np.zeros(0, np.float32)
        self.copies: Int32Array = np.zeros((3, 0), np.int32)
        self.sampled_token_ids: Int32Array = np.zeros(max_logit_rows, np.int32)
        self.logprobs: FloatArray = np.zeros(max_logit_rows, np.float32)
        self.ranks: Int32Array = np.zeros(max_logit_rows, np.int32)
        self.top_token_ids: Int32Array = np.zeros(0, np.int32)
        self.top_logprobs: FloatArray = np.zeros(0, np.float32)
        self._masks: Mapping[int, MaskArray] = {}
        self.struct = abi.Step(
            num_table_rows=block_tables.shape[1],
            max_blocks=block_tables.shape[2],
            token_ids=self.token_ids.ctypes.data,
            positions=self.positions.ctypes.data,
            query_starts=self.query_starts.ctypes.data,
            block_tables=self.block_tables.ctypes.data,
            table_rows=self.table_rows.ctypes.data,
            logit_rows=self.logit_rows.ctypes.data,
            sampling=self.sampling.ctypes.data,
            sampled_token_ids=self.sampled_token_ids.ctypes.data,
            logprobs=self.logprobs.ctypes.data,
            ranks=self.ranks.ctypes.data,
        )

    def looks_back(self, count: int) -> bool:
        """Whether some of the first `count` logit rows depends on the tokens before: for penalties, that is."""
        rows = self.sampling[:count]
        penalized = (
            (rows["repetition_penalty"] != 1) | (rows["frequency_penalty"] != 0) | (rows["presence_penalty"] != 0)
        )
        return bool(penalized.any())

    def steps_over(self, token_ids: Int32Array, positions: Int32Array, sampling: SamplingArray) -> list[abi.Step]:
        """Steps that differ from this one in these arrays: the n-th has row n of each, and samples row n + 1 of tokens.

        The caller keeps the arrays alive.
        """
        steps = [abi.Step.from_buffer_copy(self.struct) for _ in positions]
        tokens = _row_addresses(token_ids)
        rows = zip(tokens[:-1], tokens[1:], _row_addresses(positions), _row_addresses(sampling), strict=True)
        for step, addresses in zip(steps, rows, strict=True):
            step.token_ids, step.sampled_token_ids, step.positions, step.sampling = addresses
        return steps

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
        """The biases that entries of `sampling` point into; kept until the next call."""
        self.bias_token_ids, self.bias_values = token_ids, values
        self.struct.num_biases = len(token_ids)
        self.struct.bias_token_ids = token_ids.ctypes.data
        self.struct.bias_values = values.ctypes.data

    def set_masks(self, masks: Mapping[int, MaskArray]) -> None:
        """The masks of entries of `sampling`, by index; kept until the next call."""
        for index, mask in masks.items():
            self.sampling["mask"][index] = mask.ctypes.data
        self._masks = masks

    def make_room_for_top_logprobs(self, count: int) -> None:
        """Makes `top_token_ids` and `top_logprobs` at least `count` long."""
        if count > len(self.top_token_ids):
            self.top_token_ids = np.zeros(count, np.int32)
            self.top_logprobs = np.zeros(count, np.float32)
        self.struct.num_top_logprobs = len(self.top_token_ids)
        self.struct.top_token_ids = self.top_token_ids.ctypes.data
        self.struct.top_logprobs = self.top_logprobs.ctypes.data


def _row_addresses(array: npt.NDArray[np.generic]) -> range:
    """Where the rows of an array begin in memory."""
    first, row_bytes = array.ctypes.data, array.strides[0]
    return range(first, first + len(array) * row_bytes, row_bytes)
