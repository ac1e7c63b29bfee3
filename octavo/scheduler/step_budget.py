"""What a step may still take on."""

from __future__ import annotations

from octavo.scheduler.step_time import StepTimeModel

UNBOUNDED_S = float("inf")

LEAST_PREFILL_TOKENS = 16
"""A step computes so much of a prompt even when there is no time left, or prompts would never be computed."""


class StepBudget:
    """Tokens and, where time is bounded, seconds that are left for prompts. An infinite time is no bound.

    The first prompt gets `least` tokens whatever the time. A share is a budget within a budget: what is spent of it is
    spent of the whole, too. It may come down to a single token, unless so little is known that trying teaches more.
    """

    __slots__ = ("_least", "_model", "_untouched", "_whole", "seconds", "tokens")

    def __init__(
        self,
        tokens: int,
        seconds: float,
        model: StepTimeModel,
        *,
        least: int = LEAST_PREFILL_TOKENS,
        whole: StepBudget | None = None,
    ) -> None:
        self.tokens = tokens
        self.seconds = seconds
        self._model = model
        self._least = least
        self._whole = whole
        self._untouched = True

    def share(self, tokens: int, seconds: float) -> StepBudget:
        """A part of it, no larger than the whole."""
        least = LEAST_PREFILL_TOKENS if self._model.vague else 1
        return StepBudget(min(tokens, self.tokens), min(seconds, self.seconds), self._model, least=least, whole=self)

    def fit(self, wanted: int, position: int) -> int:
        """How many of `wanted` tokens from `position` on there is room for."""
        most = min(wanted, self.tokens)
        if most <= 0 or self.seconds == UNBOUNDED_S:
            return most
        fitting = self._model.affordable_tokens(self.seconds, position, most)
        return max(fitting, min(most, self._least)) if self._untouched else fitting

    def spend(self, num_tokens: int, position: int) -> None:
        self.tokens -= num_tokens
        self._untouched = False
        if self.seconds != UNBOUNDED_S:
            self.seconds -= self._model.added_s(num_tokens, position)
        if self._whole is not None:
            self._whole.spend(num_tokens, position)
