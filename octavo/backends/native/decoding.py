"""The most common step: the same rows decode once more, and nothing else is new.

Such steps differ in tokens and positions only, so the next few are laid out together:

    token_ids   the newest tokens    read by step 0
                written by step 0    read by step 1
                written by step 1    ...

and likewise a row of positions, and one of sampling entries, for each. What is left of a step is the call.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.backends.native import abi
from octavo.backends.native.logit_rows import IndexArray
from octavo.backends.native.step_arrays import Int32Array, StepArrays
from octavo.backends.native.step_results import reported_output
from octavo.step import StepOutput, StepPlan

NUM_AHEAD = 32
"""So many steps are laid out together."""


class Decoding:
    """The step that has been gathered in `arrays` and only decodes, and the steps that go on from there.

    Each of `rows` takes in what is sampled for it, and chooses its next token as it did the last. `known_token_ids`
    [all rows, tokens], of each row the first `num_known_tokens`, get these tokens when they are asked for: at once, if
    some row's next one depends on them. A step that fails cannot be continued.
    """

    def __init__(
        self, rows: tuple[int, ...], arrays: StepArrays, known_token_ids: Int32Array, num_known_tokens: IndexArray
    ) -> None:
        count = len(rows)
        self._rows = rows
        self._row_indices: IndexArray = np.array(rows, np.int64)
        self._arrays = arrays
        self._known_token_ids = known_token_ids
        self._num_known_tokens = num_known_tokens
        self._looks_back = arrays.looks_back(count)
        self._token_ids: Int32Array = np.empty((NUM_AHEAD + 1, count), np.int32)
        self._token_ids[0] = arrays.token_ids[:count]
        self._positions: Int32Array = arrays.positions[:count] + np.arange(NUM_AHEAD, dtype=np.int32)[:, np.newaxis]
        self._sampling = np.repeat(arrays.sampling[np.newaxis, :count], NUM_AHEAD, axis=0)
        self._sampling["position"] = self._positions + 1
        self._steps = arrays.steps_over(self._token_ids, self._positions, self._sampling)
        self._sampled = list(self._token_ids[1:])
        self._num_possible = self._count_possible()
        self._num_done = self._num_told = 0
        self._is_whole = True

    def continued_by(self, plan: StepPlan) -> bool:
        """Whether the plan is one more step of the same rows, for which they have room."""
        if plan.decoding != self._rows or plan.steps or plan.copies or not self._is_whole:
            return False
        if self._num_done == NUM_AHEAD:
            self._move_on()
        return self._num_done < self._num_possible

    def run(self, run: Callable[[abi.Step], None]) -> StepOutput:
        """Makes the next step."""
        number = self._num_done
        self._is_whole = False
        run(self._steps[number])
        self._is_whole = True
        self._num_done = number + 1
        if self._looks_back:
            self.tell()
        token_ids = self._sampled[number].tolist()
        return reported_output(token_ids, self._arrays) if self._arrays.reported else StepOutput(token_ids)

    def tell(self) -> None:
        """Writes down the tokens sampled since the last time."""
        first, last = self._num_told + 1, self._num_done + 1
        if first < last:
            places = self._positions[0][:, np.newaxis] + np.arange(first, last)
            self._known_token_ids[self._row_indices[:, np.newaxis], places] = self._token_ids[first:last].T
            self._num_known_tokens[self._row_indices] += last - first
            self._num_told = self._num_done

    def _move_on(self) -> None:
        """Lays out the next steps, in the same memory."""
        self.tell()
        self._token_ids[0] = self._token_ids[NUM_AHEAD]
        self._positions += NUM_AHEAD
        self._sampling["position"] += NUM_AHEAD
        self._num_possible = self._count_possible()
        self._num_done = self._num_told = 0

    def _count_possible(self) -> int:
        """For how many of the next steps all rows have room; it may be more than are laid out."""
        return int(self._known_token_ids.shape[1] - 1 - self._positions[0].max())
