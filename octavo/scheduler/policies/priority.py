"""Lower priority values first, with ageing."""

from __future__ import annotations

from octavo.request import ANONYMOUS, Request, Tenant
from octavo.scheduler.request_state import RequestState

AGEING_S = 10.0
"""Waiting so long is worth one step of priority."""


class Priority:
    """A request of priority p counts as having arrived p * `AGEING_S` later than it did.

    So a more urgent request overtakes those of the same moment, and an old one is overtaken only by requests that came
    within the difference of their priorities times `AGEING_S`: nothing starves.
    """

    displaces_any = True

    def account_of(self, request: Request) -> Tenant:
        return ANONYMOUS

    def due_s(self, request: Request, num_uncached_tokens: int) -> float:
        return request.arrival_time + AGEING_S * request.priority

    def expendability(self, request: Request) -> int:
        return request.priority

    def displaces(self, waiting: RequestState, running: RequestState) -> bool:
        return waiting.request.priority < running.request.priority
