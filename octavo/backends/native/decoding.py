"""The most common step: every row computes the token it has just got, and nothing else is new.

Such a step differs from the one before in tokens and positions only. So the arrays stay as they are, and these are
brought forward in place: a handful of operations, whose number does not depend on what the rows ask for.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.backends.native.logit_rows import LogitRows
from octavo.backends.native.step_arrays import StepArrays
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
    """What the last step left in `arrays`, if it only decoded; the rows can hold `num_left` more tokens.

    Every row takes in what is sampled for it, and chooses its next token as it did the last. Until then the step
    is not complete: one that fails cannot be continued.
    """

    def __init__(self, steps: Sequence[RowStep], logit_rows: LogitRows, arrays: StepArrays, num_left: int) -> None:
        count = len(steps)
        self.logit_rows = logit_rows
        self.is_complete = False
        self._steps = steps
        self._num_left = num_left
        self._token_ids = arrays.token_ids[:count]
        self._positions = arrays.positions[:count]
        self._sampled_token_ids = arrays.sampled_token_ids[:count]
        self._sampled_positions = arrays.sampling["position"][:count]

    def continued_by(self, steps: Sequence[RowStep]) -> bool:
        """Whether the same rows decode the tokens that the last step sampled for them."""
        if not self.is_complete or self._num_left <= 0 or len(steps) != len(self._steps):
            return False
        for step, last in zip(steps, self._steps, strict=True):
            if step.row != last.row or step.num_computed_tokens != last.num_computed_tokens + 1 or not is_decode(step):
                return False
        return True

    def advance(self, steps: Sequence[RowStep]) -> None:
        """Brings the arrays and `logit_rows` from the last step to this one."""
        self.is_complete = False
        self._steps = steps
        self._num_left -= 1
        self._token_ids[:] = self._sampled_token_ids
        self._positions += 1
        self._sampled_positions += 1
        positions = self.logit_rows.positions
        positions += 1
