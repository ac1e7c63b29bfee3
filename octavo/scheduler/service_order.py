"""Who is served before whom: a policy, the accounts it charges, and a place for every request."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from math import floor

from octavo.request import Request
from octavo.scheduler.accounts import CACHED_TOKEN_COST, PROMPT_TOKEN_COST, Account, Accounts
from octavo.scheduler.policies.policy import Policy
from octavo.scheduler.request_state import Rank, RequestState

EQUAL_S = 0.1
"""Requests due within the same tenth of a second are equals: among them the longest cached prefix goes first."""

Place = tuple[float, float, Rank]


class ServiceOrder:
    """Gives each request its account and its rank, and keeps the accounts."""

    def __init__(self, policy: Policy, weights: Mapping[str, float]) -> None:
        self._policy = policy
        self._accounts = Accounts(weights)
        self._arrivals = count()

    def enter(self, request: Request) -> Account:
        """The account of a request that has arrived."""
        return self._accounts.enter(self._policy.account_of(request))

    def leave(self, state: RequestState) -> None:
        """A request is gone for good."""
        self._accounts.leave(state.account)

    def rank(self, request: Request, num_cached_tokens: int) -> Rank:
        """The place among the requests of the same account. Kept for life: who is preempted goes back to it."""
        due_s = self._policy.due_s(request, len(request.prompt_token_ids) - num_cached_tokens)
        return floor(due_s / EQUAL_S), -num_cached_tokens, next(self._arrivals)

    def rank_beside(self, state: RequestState) -> Rank:
        """A place for a fork of a request: among the same equals."""
        return state.rank[0], state.rank[1], next(self._arrivals)

    def place(self, state: RequestState) -> Place:
        """Of two requests that could be served now, the one with the lower place goes first."""
        account = state.account
        assert account.parent is not None
        return account.parent.served, account.served, state.rank

    def precedes(self, state: RequestState, other: RequestState) -> bool:
        """Whether `state`, which is under way, goes before `other`, which waits: among equals it does."""
        account, other_account = state.account, other.account
        assert account.parent is not None and other_account.parent is not None
        return (account.parent.served, account.served, state.rank[0]) <= (
            other_account.parent.served,
            other_account.served,
            other.rank[0],
        )

    def charge_cached(self, state: RequestState, num_tokens: int) -> None:
        """The request has entered, its first `num_tokens` found in the prefix cache."""
        state.num_charged_tokens = num_tokens
        state.account.charge(CACHED_TOKEN_COST * num_tokens)

    def waive(self, state: RequestState) -> None:
        """The request has entered again: what it had before it was preempted has been paid for."""
        state.num_charged_tokens = len(state.token_ids)

    def charge_prompt(self, state: RequestState, num_computed_tokens: int) -> None:
        """So many of the request's tokens have been computed."""
        num_new_tokens = num_computed_tokens - state.num_charged_tokens
        if num_new_tokens > 0:
            state.num_charged_tokens = num_computed_tokens
            state.account.charge(PROMPT_TOKEN_COST * num_new_tokens)
