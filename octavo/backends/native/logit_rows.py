"""Which tokens of a step need logits, and what for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.step import RowStep, TokenMask

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogitRows:
    """The logits after token number `token_indices` of the step belong to `rows`, which are the requests'.

    From them the token number `positions` of its request is drawn, or, where it is `scored`, looked up. `masks` are of
    those that draw, by their index here.
    """

    token_indices: IndexArray
    rows: IndexArray
    positions: IndexArray
    scored: npt.NDArray[np.bool_]
    masks: Mapping[int, TokenMask]

    def __len__(self) -> int:
        return len(self.rows)


def logit_rows_of(decoding: IndexArray, num_tokens: IndexArray, steps: Sequence[RowStep]) -> LogitRows:
    """Of each row that decodes its newest token, after `num_tokens` in all; then of each step its scored positions, and
    its last token if it samples.
    """
    count = len(decoding)
    found: list[tuple[int, int, int, bool]] = []
    masks: dict[int, TokenMask] = {}
    first = count
    for step in steps:
        for position in step.scored_positions:
            found.append((first + position - step.num_computed_tokens, step.row, position + 1, True))
        if step.samples:
            if step.mask is not None:
                masks[count + len(found)] = step.mask
            found.append((first + step.num_tokens - 1, step.row, step.num_computed_tokens + step.num_tokens, False))
        first += step.num_tokens
    columns = np.array(found, np.int64).reshape(-1, 4).T
    return LogitRows(
        np.concatenate((np.arange(count), columns[0])),
        np.concatenate((decoding, columns[1])),
        np.concatenate((num_tokens, columns[2])),
        np.concatenate((np.zeros(count, np.bool_), columns[3].astype(np.bool_))),
        masks,
    )
