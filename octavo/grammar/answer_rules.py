"""What an answer has to keep to, put together: a form, and a bound on its reasoning."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.grammar.compiler import CompiledForm
from octavo.grammar.matcher import Matcher
from octavo.grammar.reasoning_budget import ReasoningBudget, ReasoningCount


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

    __slots__ = ("_count", "_jumps", "matcher")

    def __init__(self, matcher: Matcher | None, count: ReasoningCount | None, jumps: bool) -> None:
        self.matcher = matcher
        self._count = count
        self._jumps = jumps

    def accept(self, token_id: int) -> None:
        if self.matcher is not None:
            self.matcher.accept(token_id)
        if self._count is not None:
            self._count.accept(token_id)

    def take_forced(self, limit: int) -> tuple[int, ...]:
        if self._count is not None and self._count.spent:
            return self._end_reasoning(limit)
        return self.matcher.take_forced(limit) if self.matcher is not None and self._jumps else ()

    def _end_reasoning(self, limit: int) -> tuple[int, ...]:
        assert self._count is not None
        if len(self._count.ending) > limit:
            return ()
        for token_id in self._count.ending:
            self.accept(token_id)
        return self._count.ending

    @property
    def ended(self) -> bool:
        return self.matcher is not None and self.matcher.ended
