"""How long a step will take: a linear model, fitted to the steps that were."""

from __future__ import annotations

from typing import NamedTuple

# Units that bring the features near 1, so that the fit is well conditioned.
_TOKENS = 100.0
_CONTEXT_TOKENS = 100_000.0
_REQUESTS = 100.0

_FORGETTING = 0.99
"""A step 70 steps ago counts half: machines slow down and speed up."""
_SWEEPS = 4
"""Of the descent after each step; it goes on from where it was."""
_VAGUE = 0.1
"""Mean relative error from which on a prediction is not worth much."""
_LEAST_STEPS = 8
_OUTLIER = 3.0
"""A residual beyond so many mean absolute residuals is cut to that: a page fault or a busy neighbour is no trend."""


class StepSize(NamedTuple):
    """What decides how long a step takes.

    `num_context_tokens` is how many cached tokens its tokens attend to, together: n tokens from position p on attend to
    about n * (p + n / 2).
    """

    num_tokens: int = 0
    num_context_tokens: float = 0.0
    num_requests: int = 0

    def plus(self, num_tokens: int, position: int) -> StepSize:
        """With one request more, which computes `num_tokens` from `position` on."""
        return StepSize(
            self.num_tokens + num_tokens,
            self.num_context_tokens + num_tokens * (position + num_tokens / 2),
            self.num_requests + 1,
        )


class StepTimeModel:
    """seconds = a + b * tokens + c * context tokens + d * requests, none of them negative.

    Least squares on relative errors over the last steps, exponentially forgotten; coordinate descent keeps the
    coefficients from becoming negative. What recent steps do not tell apart stays as it was. A residual far beyond the
    usual is clipped (Huber). One observation costs about 10 us.
    """

    __slots__ = ("_mean_residual", "_moments", "_products", "_weights", "num_steps")

    def __init__(self) -> None:
        self._weights = [0.0, 0.0, 0.0, 0.0]
        self._products = [[0.0] * 4 for _ in range(4)]  # sum of x x'
        self._moments = [0.0] * 4  # sum of x y, where y is 1 but for clipping
        self._mean_residual = 0.0
        self.num_steps = 0

    @property
    def ready(self) -> bool:
        """Whether enough steps were seen for a prediction to mean something."""
        return self.num_steps >= _LEAST_STEPS

    @property
    def vague(self) -> bool:
        """Whether predictions have been far off: steps of other sizes would teach something."""
        return self._mean_residual > _VAGUE

    def predict_s(self, size: StepSize) -> float:
        """Seconds that such a step takes."""
        return sum(w * x for w, x in zip(self._weights, _features(size), strict=True))

    def added_s(self, num_tokens: int, position: int) -> float:
        """Seconds that a request adds to a step by computing `num_tokens` from `position` on."""
        _, per_tokens, per_context, per_requests = self._weights
        context = num_tokens * (position + num_tokens / 2)
        return per_tokens * num_tokens / _TOKENS + per_context * context / _CONTEXT_TOKENS + per_requests / _REQUESTS

    def affordable_tokens(self, seconds: float, position: int, most: int) -> int:
        """The largest number of tokens up to `most` that a request may compute from `position` on in `seconds`."""
        if self.added_s(most, position) <= seconds:
            return most
        least, beyond = 0, most
        while beyond - least > 1:
            middle = (least + beyond) // 2
            if self.added_s(middle, position) <= seconds:
                least = middle
            else:
                beyond = middle
        return least

    def observe(self, size: StepSize, seconds: float) -> None:
        """Learns that a step of this size took `seconds`."""
        if seconds <= 0.0 or size.num_tokens == 0:
            return
        x = [feature / seconds for feature in _features(size)]
        predicted = sum(w * v for w, v in zip(self._weights, x, strict=True))
        self._accumulate(x, predicted + self._clipped(1.0 - predicted))
        for _ in range(_SWEEPS):
            self._descend()
        self.num_steps += 1

    def _clipped(self, residual: float) -> float:
        """A residual of a fit that has settled, cut to `_OUTLIER` times the usual."""
        if self.num_steps < 2 * _LEAST_STEPS:
            self._mean_residual += (abs(residual) - self._mean_residual) / (self.num_steps + 1)
            return residual
        bound = _OUTLIER * self._mean_residual + 1e-3
        clipped = min(max(residual, -bound), bound)
        self._mean_residual += 0.05 * (abs(clipped) - self._mean_residual)
        return clipped

    def _accumulate(self, x: list[float], y: float) -> None:
        """Adds an observation, `y` = weights * `x`, to what is left of those before."""
        moments = self._moments
        for i, row in enumerate(self._products):
            value = x[i]
            moments[i] = _FORGETTING * moments[i] + value * y
            for j in range(4):
                row[j] = _FORGETTING * row[j] + value * x[j]

    def _descend(self) -> None:
        """Each coefficient in turn takes its best value that is not negative, the others being what they are."""
        weights = self._weights
        for i, row in enumerate(self._products):
            if row[i] > 0.0:
                slope = self._moments[i] - sum(p * w for p, w in zip(row, weights, strict=True))
                weights[i] = max(0.0, weights[i] + slope / row[i])


def _features(size: StepSize) -> tuple[float, float, float, float]:
    return (
        1.0,
        size.num_tokens / _TOKENS,
        size.num_context_tokens / _CONTEXT_TOKENS,
        size.num_requests / _REQUESTS,
    )
