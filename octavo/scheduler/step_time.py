"""How long a step will take: a linear model, fitted to the steps that were."""

from __future__ import annotations

from dataclasses import dataclass

# Units that bring the features near 1, so that the fit is well conditioned.
_TOKENS = 100.0
_CONTEXT_TOKENS = 100_000.0
_REQUESTS = 100.0

_DRIFT = 0.003
"""Of its size that a coefficient may change by from one step to the next, as machines slow down and speed up."""
_NOISE = 0.05
"""Relative error of a single measurement."""
_LEAST_STEPS = 8
_OUTLIER = 3.0
"""A residual beyond so many mean absolute residuals is cut to that: a page fault or a busy neighbour is no trend."""


@dataclass(frozen=True, slots=True)
class StepSize:
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

    Recursive least squares on relative errors, with coefficients that walk at random (a Kalman filter): what a step
    does not tell about stays as it was, only less certain. A residual far beyond the usual is clipped. Source: Ljung,
    System Identification, 2nd edition, section 11.2. One observation costs about 6 us.
    """

    __slots__ = ("_covariance", "_mean_residual", "_weights", "num_steps")

    def __init__(self) -> None:
        self._weights = [0.0, 0.0, 0.0, 0.0]
        self._covariance = [[100.0 if row == column else 0.0 for column in range(4)] for row in range(4)]
        self._mean_residual = 0.0
        self.num_steps = 0

    @property
    def ready(self) -> bool:
        """Whether enough steps were seen for a prediction to mean something."""
        return self.num_steps >= _LEAST_STEPS

    def predict_s(self, size: StepSize) -> float:
        """Seconds that such a step takes."""
        return sum(w * x for w, x in zip(self._coefficients, _features(size), strict=True))

    def added_s(self, num_tokens: int, position: int) -> float:
        """Seconds that a request adds to a step by computing `num_tokens` from `position` on."""
        _, per_tokens, per_context, per_requests = self._coefficients
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
        residual = self._clipped(1.0 - sum(w * v for w, v in zip(self._weights, x, strict=True)))
        self._learn(x, residual)
        self.num_steps += 1

    @property
    def _coefficients(self) -> list[float]:
        return [weight if weight > 0.0 else 0.0 for weight in self._weights]

    def _clipped(self, residual: float) -> float:
        """A residual of a fit that has settled, cut to `_OUTLIER` times the usual."""
        if self.num_steps < 2 * _LEAST_STEPS:
            self._mean_residual += (abs(residual) - self._mean_residual) / (self.num_steps + 1)
            return residual
        bound = _OUTLIER * self._mean_residual + 1e-3
        clipped = min(max(residual, -bound), bound)
        self._mean_residual += 0.05 * (abs(clipped) - self._mean_residual)
        return clipped

    def _learn(self, x: list[float], residual: float) -> None:
        covariance, weights = self._covariance, self._weights
        projected = [sum(p * v for p, v in zip(row, x, strict=True)) for row in covariance]
        scale = 1.0 / (_NOISE * _NOISE + sum(v * p for v, p in zip(x, projected, strict=True)))
        for i, row in enumerate(covariance):
            gain = projected[i] * scale
            weights[i] += gain * residual
            for j in range(4):
                row[j] -= gain * projected[j]
            row[i] += (_DRIFT * weights[i]) ** 2


def _features(size: StepSize) -> tuple[float, float, float, float]:
    return (
        1.0,
        size.num_tokens / _TOKENS,
        size.num_context_tokens / _CONTEXT_TOKENS,
        size.num_requests / _REQUESTS,
    )
