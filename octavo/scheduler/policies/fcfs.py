"""First come, first served."""

from __future__ import annotations

from octavo.request import ANONYMOUS, Request, Tenant
from octavo.scheduler.request_state import RequestState


class Fcfs:
    """In order of arrival, whoever asks for whatever."""

    displaces_any = False

    def account_of(self, request: Request) -> Tenant:
        return ANONYMOUS

    def due_s(self, request: Request, num_uncached_tokens: int) -> float:
        return request.arrival_time

    def expendability(self, request: Request) -> int:
        return 0

    def displaces(self, waiting: RequestState, running: RequestState) -> bool:
        return False
