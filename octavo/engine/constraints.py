"""What restricts the answers that are under way: what must follow without a choice, and masks for the rest.

A mask is computed as soon as the token before it is known, on another thread, while this one makes text of the tokens
and schedules the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from octavo.constraint import Constraint
from octavo.errors import RequestError
from octavo.grammar.masks import MaskComputer
from octavo.request import Request
from octavo.scheduler.request_state import NewToken
from octavo.step import RowStep, StepPlan


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
        self._side = ThreadPoolExecutor(1, "octavo-masks")
        self._open: dict[str, Constraint] = {}
        self._initial: dict[str, tuple[int, ...]] = {}
        self._masks: dict[str, memoryview] = {}
        self._coming: tuple[dict[str, Constraint], Future[list[memoryview]]] | None = None

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
        self._masks.pop(request_id, None)

    def close_all(self) -> None:
        """Ends the thread."""
        self._side.shutdown()

    def masked(self, plan: StepPlan, request_ids: Sequence[str]) -> StepPlan:
        """The plan, whose steps belong to these requests, with a mask for each step that samples and needs one."""
        if not self._open:
            return plan
        self._collect_masks()
        sampling = [
            request_id for request_id, step in zip(request_ids, plan.steps, strict=True)
            if step.samples and request_id not in self._masks
        ]  # fmt: skip
        missing = self._restricted(sampling)
        if missing:
            self._masks.update(zip(missing, self._compute(missing), strict=True))
        steps = zip(request_ids, plan.steps, strict=True)
        return replace(plan, steps=tuple([self._masked_step(request_id, step) for request_id, step in steps]))

    def advance(self, tokens: list[NewToken]) -> Advance:
        """Takes in what a step sampled."""
        if not self._open:
            return Advance(tokens)
        advance = Advance([])
        for token in tokens:
            constraint = self._open.get(token.request_id)
            if constraint is None:
                advance.tokens.append(token)
                continue
            self._masks.pop(token.request_id, None)
            try:
                self._follow(constraint, token, advance)
            except RequestError as error:
                advance.refused[token.request_id] = error
        return advance

    def begin_masks(self) -> None:
        """Starts on the masks that the next step may need."""
        restricted = self._restricted([request_id for request_id in self._open if request_id not in self._masks])
        if restricted:
            self._coming = (restricted, self._side.submit(self._compute, restricted))

    def _follow(self, constraint: Constraint, token: NewToken, advance: Advance) -> None:
        request_id = token.request_id
        constraint.accept(token.token_id)
        forced = () if constraint.ended else constraint.take_forced(_ANY_NUMBER)
        initial = [NewToken(request_id, token_id) for token_id in self._initial.pop(request_id, ())]
        following = [token, *(NewToken(request_id, token_id) for token_id in forced)]
        if constraint.ended:
            following[-1] = replace(following[-1], last=True)
        advance.tokens.extend([*initial, *following])
        if forced:
            advance.forced[request_id] = forced

    def _restricted(self, request_ids: Sequence[str]) -> dict[str, Constraint]:
        """Those of which not every token may come next."""
        found = {request_id: self._open.get(request_id) for request_id in request_ids}
        return {key: constraint for key, constraint in found.items() if constraint and constraint.matcher is not None}

    def _compute(self, constraints: Mapping[str, Constraint]) -> list[memoryview]:
        return self._computer.compute([constraint.matcher for constraint in constraints.values()])

    def _collect_masks(self) -> None:
        """Waits for the masks begun. Of a request that has been closed since they are of no use."""
        if self._coming is None:
            return
        constraints, masks = self._coming
        self._coming = None
        for (request_id, constraint), mask in zip(constraints.items(), masks.result(), strict=True):
            if self._open.get(request_id) is constraint:
                self._masks[request_id] = mask

    def _masked_step(self, request_id: str, step: RowStep) -> RowStep:
        mask = self._masks.get(request_id) if step.samples else None
        return step if mask is None else replace(step, mask=mask)


_ANY_NUMBER = 2**31
