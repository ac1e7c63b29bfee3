"""The most common step: every row computes the token it has just got, and nothing else is new.

Such a step differs from the one before in tokens and positions only. So the arrays stay as they are, and these are
brought forward in place: a handful of operations, whose number does not depend on what the rows ask for.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.backends.native.logit_rows import LogitRows
from octavo.backends.native.step_arrays import Int32Array, StepArrays
from octavo.step import RowStep


def is_decode(step: RowStep) -> bool:
    """Whether a row computes one token, which it knew before, and samples the next from the whole vocabulary."""
    return (
        step.num_tokens == 1
        and step.samples
        and step.mask is None
        and not step.new_token_ids
        and not step.scored_positions
    )


class Decoding:
    """What the last step left in `arrays`, if it only decoded.

    Every row takes in what is sampled for it, and chooses its next token as it did the last. `token_ids` [rows, tokens]
    are those of the rows; how many were appended to each is counted in `num_appended`. A step that fails is not
    completed, and cannot be continued.
    """

    def __init__(
        self, steps: Sequence[RowStep], logit_rows: LogitRows, arrays: StepArrays, token_ids: Int32Array
    ) -> None:
        count = len(steps)
        self.logit_rows = logit_rows
        self.num_appended = 0
        self._is_complete = False
        self._steps = steps
        self._num_left = token_ids.shape[1] - 1 - int(logit_rows.positions.max(initial=0))
        self._token_ids = arrays.token_ids[:count]
        self._positions = arrays.positions[:count]
        self._sampled_token_ids = arrays.sampled_token_ids[:count]
        self._sampled_positions = arrays.sampling["position"][:count]
        self._known_token_ids = token_ids.reshape(-1)  # a view
        self._places = logit_rows.rows * token_ids.shape[1] + logit_rows.positions

    def continued_by(self, steps: Sequence[RowStep]) -> bool:
        """Whether the same rows decode the tokens that the last step sampled for them."""
        if not self._is_complete or self._num_left <= 0 or len(steps) != len(self._steps):
            return False
        for step, last in zip(steps, self._steps, strict=True):
            if step.row != last.row or step.num_computed_tokens != last.num_computed_tokens + 1 or not is_decode(step):
                return False
        return True

    def advance(self, steps: Sequence[RowStep]) -> None:
        """Brings the arrays from the last step to this one."""
        self._is_complete = False
        self._steps = steps
        self._num_left -= 1
        self._token_ids[:] = self._sampled_token_ids
        self._positions += 1
        self._sampled_positions += 1

    def complete(self) -> None:
        """Each row takes in the token that this step has sampled for it."""
        self._known_token_ids[self._places] = self._sampled_token_ids
        self._places += 1
        self.num_appended += 1
        self._is_complete = True
