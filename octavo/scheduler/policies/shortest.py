"""Shortest uncached prompt first, with a bound on overtaking."""

from __future__ import annotations

from octavo.request import ANONYMOUS, Request, Tenant
from octavo.scheduler.request_state import RequestState

UNCACHED_TOKENS_PER_S = 500.0
"""Waiting one second is worth so many tokens of a shorter prompt."""

MAX_OVERTAKEN_S = 30.0
"""Nobody is overtaken by a request that arrived so much later."""


class Shortest:
    """A request counts as having arrived later by what it has to compute, at `UNCACHED_TOKENS_PER_S`, but no more than
    `MAX_OVERTAKEN_S`. A long prompt whose prefix is cached is a short one.
    """

    displaces_any = False

    def account_of(self, request: Request) -> Tenant:
        return ANONYMOUS

    def due_s(self, request: Request, num_uncached_tokens: int) -> float:
        return request.arrival_time + min(num_uncached_tokens / UNCACHED_TOKENS_PER_S, MAX_OVERTAKEN_S)

    def expendability(self, request: Request) -> int:
        return 0

    def displaces(self, waiting: RequestState, running: RequestState) -> bool:
        return False
