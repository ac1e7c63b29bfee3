"""What an answer has to keep to, put together: a form, tokens it must not have, and a bound on its reasoning."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.bans import BannedTokens, Bans
from octavo.grammar.compiler import CompiledForm
from octavo.grammar.matcher import Matcher
from octavo.reasoning.budget import BudgetedReasoning, ReasoningBudget


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """Rules for all answers of a request. With `jumps`, tokens that leave no choice are not sampled one by one."""

    form: CompiledForm | None = None
    budget: ReasoningBudget | None = None
    bans: Bans | None = None
    jumps: bool = True

    def start(self) -> RuledAnswer:
        form = None if self.form is None else self.form.matcher()
        budget = None if self.budget is None else self.budget.start()
        return RuledAnswer(form, budget, None if self.bans is None else self.bans.start(), self.jumps)


class RuledAnswer:
    """One answer under its rules."""

    __slots__ = ("_bans", "_jumps", "_reasoning", "matcher")

    def __init__(
        self, matcher: Matcher | None, reasoning: BudgetedReasoning | None, bans: BannedTokens | None, jumps: bool
    ) -> None:
        self.matcher = matcher
        self._reasoning = reasoning
        self._bans = bans
        self._jumps = jumps

    def accept(self, token_id: int) -> None:
        if self._bans is not None:
            self._refuse_if_banned(token_id, self._bans)
        self._follow(token_id)

    def take_forced(self, limit: int) -> tuple[int, ...]:
        ending = () if self._reasoning is None else self._reasoning.ending
        if ending and len(ending) <= limit:
            for token_id in ending:
                self._follow(token_id)
            return ending
        return self._take_formal(limit) if not ending else ()

    def _follow(self, token_id: int) -> None:
        if self.matcher is not None:
            self.matcher.accept(token_id)
        if self._reasoning is not None:
            self._reasoning.accept(token_id)
        if self._bans is not None:
            self._bans.accept(token_id)

    def _refuse_if_banned(self, token_id: int, bans: BannedTokens) -> None:
        """A token that is banned, or that the form forbids, was sampled because all are."""
        outside = self.matcher is not None and not self.matcher.allows(token_id)
        if outside or bans.forbids(token_id):
            raise bans.refusal(None if self.matcher is None else self.matcher.param)

    def _take_formal(self, limit: int) -> tuple[int, ...]:
        """What the form leaves no choice about, up to the first token that is banned."""
        if self.matcher is None or not self._jumps:
            return ()
        forced = self.matcher.forced()[:limit]
        if self._bans is not None:
            forced = self._bans.beginning(forced)
        self.matcher.accept_all(forced)
        if self._reasoning is not None:
            for token_id in forced:
                self._reasoning.accept(token_id)
        return forced

    @property
    def ended(self) -> bool:
        return self.matcher is not None and self.matcher.ended
