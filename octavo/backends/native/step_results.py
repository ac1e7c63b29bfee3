"""What a step has left in its arrays, as a `StepOutput`."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from octavo.backends.native.logit_rows import LogitRows
from octavo.backends.native.step_arrays import StepArrays
from octavo.step import ScoredTokens, StepOutput, TokenLogprobs


def step_output(logit_rows: LogitRows, arrays: StepArrays) -> StepOutput:
    """The tokens that were drawn and those that were scored, in the order of the plan."""
    rows = logit_rows.rows.tolist()
    token_ids = arrays.sampled_token_ids[: len(rows)].tolist()
    if not arrays.reported:
        return StepOutput(token_ids)
    logprobs = {index: _token_logprobs(index, token_ids[index], arrays) for index in arrays.reported}
    drawn = np.flatnonzero(~logit_rows.scored).tolist()
    scored = groupby(np.flatnonzero(logit_rows.scored).tolist(), key=rows.__getitem__)
    return StepOutput(
        [token_ids[index] for index in drawn],
        tuple(logprobs.get(index) for index in drawn),
        tuple(ScoredTokens(row, tuple(logprobs[index] for index in indices)) for row, indices in scored),
    )


def reported_output(token_ids: list[int], arrays: StepArrays) -> StepOutput:
    """The same where every row of logits has drawn one of `token_ids`."""
    reported = set(arrays.reported)
    logprobs = [
        _token_logprobs(index, token_id, arrays) if index in reported else None
        for index, token_id in enumerate(token_ids)
    ]
    return StepOutput(token_ids, tuple(logprobs))


def _token_logprobs(index: int, token_id: int, arrays: StepArrays) -> TokenLogprobs:
    entry = arrays.sampling[index]
    first = int(entry["first_logprob"])
    last = first + int(entry["num_logprobs"])
    likeliest = arrays.top_token_ids[first:last]
    known = likeliest >= 0  # logits that are NaN leave places empty
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(arrays.logprobs[index]),
        rank=int(arrays.ranks[index]),
        top_token_ids=tuple(likeliest[known].tolist()),
        top_logprobs=tuple(arrays.top_logprobs[first:last][known].tolist()),
    )
