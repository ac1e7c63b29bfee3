"""The tenant that has been served least goes first."""

from __future__ import annotations

from octavo.request import Request, Tenant
from octavo.scheduler.accounts import has_fewer_rows
from octavo.scheduler.policies.priority import AGEING_S
from octavo.scheduler.request_state import RequestState


class Fair:
    """Virtual token counters: each tenant has an account of the tokens it was served, and the lowest one is next.

    Rows are shared like tokens: a tenant whose request is next and finds no room takes it from one that holds more.

    Among one tenant's own requests priorities hold as in `Priority`; they gain nothing against other tenants. With a
    single tenant this is first come, first served. Source: Sheng et al., Fairness in Serving Large Language Models,
    OSDI 2024; the counters are in accounts.py.
    """

    displaces_any = True

    def account_of(self, request: Request) -> Tenant:
        return request.tenant

    def due_s(self, request: Request, num_uncached_tokens: int) -> float:
        return request.arrival_time + AGEING_S * request.priority

    def expendability(self, request: Request) -> int:
        return 0

    def displaces(self, waiting: RequestState, running: RequestState) -> bool:
        return has_fewer_rows(waiting.account, running.account)
