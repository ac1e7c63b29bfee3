"""What an answer has to keep to, put together: a form, and a bound on its reasoning."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.grammar.compiler import CompiledForm
from octavo.grammar.matcher import Matcher
from octavo.reasoning.budget import BudgetedReasoning, ReasoningBudget


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """Rules for all answers of a request. With `jumps`, tokens that leave no choice are not sampled one by one."""

    form: CompiledForm | None = None
    budget: ReasoningBudget | None = None
    jumps: bool = True

    def start(self) -> RuledAnswer:
        form = None if self.form is None else self.form.matcher()
        return RuledAnswer(form, None if self.budget is None else self.budget.start(), self.jumps)


class RuledAnswer:
    """One answer under its rules."""

    __slots__ = ("_jumps", "_reasoning", "matcher")

    def __init__(self, matcher: Matcher | None, reasoning: BudgetedReasoning | None, jumps: bool) -> None:
        self.matcher = matcher
        self._reasoning = reasoning
        self._jumps = jumps

    def accept(self, token_id: int) -> None:
        if self.matcher is not None:
            self.matcher.accept(token_id)
        if self._reasoning is not None:
            self._reasoning.accept(token_id)

    def take_forced(self, limit: int) -> tuple[int, ...]:
        ending = () if self._reasoning is None else self._reasoning.ending
        if ending and len(ending) <= limit:
            for token_id in ending:
                self.accept(token_id)
            return ending
        return self._take_formal(limit) if not ending else ()

    def _take_formal(self, limit: int) -> tuple[int, ...]:
        """What the form leaves no choice about."""
        if self.matcher is None or not self._jumps:
            return ()
        forced = self.matcher.take_forced(limit)
        if self._reasoning is not None:
            for token_id in forced:
                self._reasoning.accept(token_id)
        return forced

    @property
    def ended(self) -> bool:
        return self.matcher is not None and self.matcher.ended
