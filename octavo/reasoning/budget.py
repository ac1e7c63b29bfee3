"""A bound on how long an answer may reason: then its reasoning is ended for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.reasoning.count import ReasoningCount
from octavo.reasoning.markers import ReasoningMarkers, ReasoningState


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """`max_tokens` of reasoning, its markers included; then the tokens `ending` are put in, which spell the end."""

    max_tokens: int
    ending: tuple[int, ...]
    markers: ReasoningMarkers
    state: ReasoningState
    token_bytes: Callable[[int], bytes]

    def start(self) -> BudgetedReasoning:
        return BudgetedReasoning(self)


class BudgetedReasoning:
    """The reasoning of one answer under its budget."""

    __slots__ = ("_budget", "_count")

    def __init__(self, budget: ReasoningBudget) -> None:
        self._budget = budget
        self._count = ReasoningCount(budget.markers, budget.state, budget.token_bytes)

    @property
    def ending(self) -> tuple[int, ...]:
        """What must follow now that the budget is spent; empty while it is not."""
        spent = self._count.running and self._count.num_tokens >= self._budget.max_tokens
        return self._budget.ending if spent else ()

    def accept(self, token_id: int) -> None:
        self._count.accept(token_id)
