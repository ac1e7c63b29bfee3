"""What a scheduling policy decides."""

from __future__ import annotations

from typing import Protocol

from octavo.request import Request, Tenant
from octavo.scheduler.request_state import RequestState


class Policy(Protocol):
    """The order of service: first by account (whose served work is least), then by due time; and who gives way.

    A due time is a moment of the arrival clock, computed once when the request begins to wait. Since every policy adds
    to the arrival time only what is bounded, nobody can be overtaken for ever: whoever arrives late enough is behind.
    """

    @property
    def displaces_any(self) -> bool:
        """Whether `displaces` can ever hold."""
        ...

    def account_of(self, request: Request) -> Tenant:
        """Whose account pays for the request. A policy that does not tell tenants apart has one account for all."""
        ...

    def due_s(self, request: Request, num_uncached_tokens: int) -> float:
        """When the request counts as having arrived, `num_uncached_tokens` being what it has to compute at first."""
        ...

    def expendability(self, request: Request) -> int:
        """Of two running requests the one with the higher value is preempted first, whatever that costs."""
        ...

    def displaces(self, waiting: RequestState, running: RequestState) -> bool:
        """Whether a request that is next but finds no row, or too little memory, has a better right to what one holds
        that runs. Must not hold both ways, nor in a circle.
        """
        ...
