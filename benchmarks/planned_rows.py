"""What the rows of a plan compute, each told of by itself."""

from __future__ import annotations

from octavo.step import RowStep, StepPlan


class PlannedRows:
    """Follows the plans of an engine whose requests all take in what is sampled for them."""

    def __init__(self) -> None:
        self._num_tokens: dict[int, int] = {}

    def steps(self, plan: StepPlan) -> list[RowStep]:
        """The next plan's steps, those of rows that decode among them, in batch order."""
        num_tokens = self._num_tokens
        for start in plan.starts:
            num_tokens[start.row] = len(start.token_ids)
        for step in plan.steps:
            num_tokens[step.row] += len(step.new_token_ids)
        new_block_ids = dict(plan.new_blocks)
        decoding = [RowStep(row, num_tokens[row] - 1, 1, new_block_ids.get(row, ()), True) for row in plan.decoding]
        for row in plan.sampling_rows:
            num_tokens[row] += 1
        return [*decoding, *plan.steps]
