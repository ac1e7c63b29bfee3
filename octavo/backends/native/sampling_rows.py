"""How the tokens of each row are chosen: what the backend remembers of the sampling parameters between steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.native.biases import Biases, RowBiases, joined
from octavo.backends.native.logit_rows import IndexArray, LogitRows
from octavo.backends.native.step_arrays import Int32Array, MaskArray, SamplingArray, StepArrays, greedy_sampling
from octavo.errors import StepError
from octavo.step import RowStart, TokenMask

SEED_MASK = (1 << 64) - 1
_INT32_MAX = (1 << 31) - 1


class SamplingRows:
    """Sampling parameters of the rows, and the tokens they may not choose. A row's tokens belong to `Rows`."""

    def __init__(self, token_ids: Int32Array, vocab_size: int) -> None:
        self._token_ids = token_ids
        self._vocab_size = vocab_size
        self._sampling: SamplingArray = greedy_sampling(len(token_ids))
        self._sampling["token_ids"] = token_ids.ctypes.data + np.arange(len(token_ids)) * token_ids.strides[0]
        self._num_prompt_logprobs: Int32Array = np.full(len(token_ids), -1, np.int32)
        self._biases: dict[int, RowBiases] = {}
        self._allowed: dict[int, MaskArray] = {}

    def start(self, start: RowStart) -> None:
        """A request takes the row: its parameters replace whatever was there."""
        row, sampling = start.row, start.sampling
        entry = self._sampling[row]
        entry["temperature"] = sampling.temperature
        entry["top_k"] = min(max(sampling.top_k, 0), _INT32_MAX)
        entry["top_p"] = sampling.top_p
        entry["min_p"] = sampling.min_p
        entry["repetition_penalty"] = sampling.repetition_penalty
        entry["frequency_penalty"] = sampling.frequency_penalty
        entry["presence_penalty"] = sampling.presence_penalty
        entry["seed"] = (sampling.seed or 0) & SEED_MASK
        entry["num_prompt_tokens"] = start.num_prompt_tokens
        entry["num_logprobs"] = self._num_reported(sampling.logprobs)
        self._num_prompt_logprobs[row] = self._num_reported(sampling.prompt_logprobs)
        self._start_biases(start)
        self._allowed.pop(row, None)
        if sampling.allowed_token_ids:
            self._allowed[row] = _mask_of(sampling.allowed_token_ids, self._vocab_size)

    @property
    def biases_may_change(self) -> bool:
        """Whether the next token of some row may get other biases than the last."""
        return any(biases.may_change for biases in self._biases.values())

    def gather(self, logit_rows: LogitRows, arrays: StepArrays) -> None:
        """Fills `arrays` with how each row of logits becomes a token."""
        rows, positions, scored = logit_rows.rows, logit_rows.positions, logit_rows.scored
        sampling = arrays.sampling[: len(rows)]
        np.take(self._sampling, rows, out=sampling, mode="clip")
        sampling["position"] = positions
        if scored.any():
            sampling["scored_token"][scored] = self._token_ids[rows[scored], positions[scored]]
            sampling["num_logprobs"][scored] = self._num_prompt_logprobs[rows[scored]]
        if self._biases:
            self._gather_biases(rows, positions, arrays)
        self._gather_masks(logit_rows, arrays)
        self._gather_logprobs(sampling, arrays)

    def _num_reported(self, num_logprobs: int | None) -> int:
        """As the library wants it: -1 for no log probabilities; -1 itself means the whole vocabulary."""
        if num_logprobs is None:
            return -1
        return self._vocab_size if num_logprobs == -1 else min(num_logprobs, self._vocab_size)

    def _start_biases(self, start: RowStart) -> None:
        self._biases.pop(start.row, None)
        biases = RowBiases(start)
        if not biases.empty:
            self._biases[start.row] = biases

    def _gather_biases(self, rows: IndexArray, positions: IndexArray, arrays: StepArrays) -> None:
        gathered: list[Biases] = []
        total = 0
        for index, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            if row not in self._biases:
                continue
            biases = self._biases[row].at(self._token_ids[row, :position])
            arrays.sampling["first_bias"][index] = total
            arrays.sampling["num_biases"][index] = len(biases)
            gathered.append(biases)
            total += len(biases)
            if self._biases[row].empty:
                del self._biases[row]
        all_biases = joined(gathered)
        arrays.set_biases(all_biases.token_ids, all_biases.values)

    def _gather_masks(self, logit_rows: LogitRows, arrays: StepArrays) -> None:
        if not self._allowed and not logit_rows.masks:
            arrays.set_masks({})
            return
        masks = {
            index: self._allowed[row] for index, row in enumerate(logit_rows.rows.tolist()) if row in self._allowed
        }
        for index, given in logit_rows.masks.items():
            mask = self._checked_mask(int(logit_rows.rows[index]), given)
            masks[index] = mask & masks[index] if index in masks else mask
        arrays.set_masks(masks)

    def _gather_logprobs(self, sampling: SamplingArray, arrays: StepArrays) -> None:
        """Gives each entry its place among the likeliest tokens."""
        num_logprobs = sampling["num_logprobs"]
        arrays.reported = np.flatnonzero(num_logprobs >= 0).tolist()
        if not arrays.reported:
            return
        counts = np.maximum(num_logprobs, 0)
        total = int(counts.sum())
        if total:
            sampling["first_logprob"] = np.cumsum(counts) - counts
            arrays.make_room_for_top_logprobs(total)

    def _checked_mask(self, row: int, given: TokenMask) -> MaskArray:
        num_bytes = -(-self._vocab_size // 32) * 4
        if len(given) != num_bytes:
            raise StepError(
                f"the mask of row {row} has {len(given)} bytes; a vocabulary of {self._vocab_size} takes {num_bytes}"
            )
        return np.frombuffer(given, np.uint32)


def _mask_of(token_ids: Sequence[int], vocab_size: int) -> MaskArray:
    """A bit for each of the tokens."""
    allowed = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    allowed[list(token_ids)] = True
    mask: MaskArray = np.packbits(allowed, bitorder="little").view(np.uint32)
    return mask
