"""What restricts the answers that are under way: what must follow without a choice, and masks for the rest.

Masks are computed right before the step that needs them, all together, by the grammar library: meanwhile
the interpreter is free, and the event loop sends out the tokens of the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.constraint import Constraint
from octavo.errors import RequestError
from octavo.grammar.masks import MaskComputer
from octavo.request import Request
from octavo.scheduler.outcome import NewToken
from octavo.step import StepPlan


@dataclass(frozen=True, slots=True)
class Advance:
    """What became of a step's tokens.

    `tokens` are those sampled and those that follow from them, in order; `forced` the latter, by request; `refused` the
    requests that cannot go on, with the reason.
    """

    tokens: list[NewToken]
    forced: dict[str, tuple[int, ...]] = field(default_factory=dict)
    refused: dict[str, RequestError] = field(default_factory=dict)


class Constraints:
    """The constraints of all requests in the engine that have one. Belongs to the engine thread."""

    def __init__(self, masks: MaskComputer) -> None:
        self._computer = masks
        self._open: dict[str, Constraint] = {}
        self._initial: dict[str, tuple[int, ...]] = {}

    @property
    def num_open(self) -> int:
        """How many requests have a constraint."""
        return len(self._open)

    def open(self, request: Request) -> tuple[int, ...]:
        """Begins an answer; gives the tokens it must begin with, at least one fewer than it may have.

        Raises `RequestError` if the request asks for what cannot be.
        """
        if request.constraint is None:
            return ()
        constraint = request.constraint.start()
        forced = constraint.take_forced((request.sampling.max_tokens or 1) - 1)
        if constraint.ended:  # but the model has to say something
            constraint, forced = request.constraint.start(), ()
        self._open[request.request_id] = constraint
        if forced:
            self._initial[request.request_id] = forced
        return forced

    def close(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._initial.pop(request_id, None)

    def masked(self, plan: StepPlan, request_ids: Sequence[str]) -> StepPlan:
        """The plan, which is about these requests, with a mask for each step that samples and needs one.

        Who decodes without a `RowStep` has no constraint.
        """
        request_ids = request_ids[len(plan.decoding) :]
        steps = list(plan.steps)
        sampling = [position for position, step in enumerate(steps) if step.samples]
        matchers = {position: self._matcher(request_ids[position]) for position in sampling}
        matchers = {position: matcher for position, matcher in matchers.items() if matcher is not None}
        for position, mask in zip(matchers, self._computer.compute(list(matchers.values())), strict=True):
            steps[position] = steps[position]._replace(mask=mask)
        return replace(plan, steps=tuple(steps))

    def advance(self, tokens: list[NewToken]) -> Advance:
        """Takes in what a step sampled."""
        advance = Advance([])
        for token in tokens:
            constraint = self._open.get(token.request_id)
            if constraint is None:
                advance.tokens.append(token)
                continue
            try:
                self._follow(constraint, token, advance)
            except RequestError as error:
                advance.refused[token.request_id] = error
                self.close(token.request_id)
        return advance

    def _follow(self, constraint: Constraint, token: NewToken, advance: Advance) -> None:
        request_id = token.request_id
        constraint.accept(token.token_id)
        forced = () if constraint.ended else constraint.take_forced(_ANY_NUMBER)
        initial = [NewToken(request_id, token_id) for token_id in self._initial.pop(request_id, ())]
        following = [token, *(NewToken(request_id, token_id) for token_id in forced)]
        if constraint.ended:
            following[-1] = following[-1]._replace(last=True)
        advance.tokens.extend([*initial, *following])
        if forced:
            advance.forced[request_id] = forced

    def _matcher(self, request_id: str) -> Any:
        """What tells which tokens may come next; None if all may."""
        constraint = self._open.get(request_id)
        return None if constraint is None else constraint.matcher


_ANY_NUMBER = 2**31
