"""What each tenant has been served: virtual token counters in two levels, API keys and each key's users.

Two levels, because a client names its users itself: inventing users must not buy a larger share of the machine, only
divide one's own.

                      root
               key a  /  \\  key b (weight 2)
                  7      8               the lower counter is served first; b paid 16 tokens for its 8
              u1 / \\ u2   |
                3   4     8

Source: Sheng et al., Fairness in Serving Large Language Models, OSDI 2024 (algorithm 2 with weights).
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.request import Tenant
from octavo.scheduler.growing_heap import GrowingHeap

PROMPT_TOKEN_COST = 1.0
OUTPUT_TOKEN_COST = 2.0
"""A token that is decoded alone reads all weights for itself: twice a prompt token, as in the paper."""
CACHED_TOKEN_COST = 0.1
"""A prompt token found in the prefix cache costs no computation, but memory while the request runs."""

_SWEEP_INTERVAL = 1024


class Account:
    """The counter of one tenant (a user of a key), or of one key with all its users.

    `served` is the cost of the tokens computed for it, divided by its weight. While it has requests here it is present;
    `num_requests` counts them, `num_running` those that hold a row.
    """

    __slots__ = ("_floor", "children", "name", "num_requests", "num_running", "parent", "present", "rate", "served")

    def __init__(self, name: str, parent: Account | None, weight: float = 1.0) -> None:
        self.name = name
        self.parent = parent
        self.rate = 1.0 / weight
        self.served = 0.0
        self.num_requests = 0
        self.num_running = 0
        self.children: dict[str, Account] = {}
        self.present: GrowingHeap[Account] = GrowingHeap(_served, _is_present)
        self._floor = 0.0

    def enter(self) -> None:
        """A request of this account has arrived.

        Returning from idleness lifts the counter to the lowest of those present (or, when nobody is, of whoever left
        last): being away saves nothing up, and nobody has to wait until a newcomer has caught up with the past.
        """
        if self.num_requests == 0 and self.parent is not None:
            self.served = max(self.served, self.parent.floor)
            self.num_requests = 1
            self.parent.present.push(self)
        else:
            self.num_requests += 1
        if self.parent is not None:
            self.parent.enter()

    def leave(self) -> None:
        """A request of this account has gone."""
        self.num_requests -= 1
        if self.parent is not None:
            if self.num_requests == 0:
                self.parent.note_departure(self.served)
            self.parent.leave()

    @property
    def floor(self) -> float:
        """The counter below which no account in here is served: that of the least served one present."""
        least = self.present.first()
        return self._floor if least is None else least.served

    def note_departure(self, served: float) -> None:
        self._floor = served

    def count_running(self, change: int) -> None:
        """A request of this account takes a row (1) or gives it back (-1)."""
        self.num_running += change
        if self.parent is not None:
            self.parent.count_running(change)

    def charge(self, cost: float) -> None:
        """Adds what was computed for a user, to its account and to its key's."""
        self.served += cost * self.rate
        key = self.parent
        if key is not None:
            key.served += cost * key.rate


def has_fewer_rows(account: Account, other: Account) -> bool:
    """Whether, for its weight, `account` would still hold no more rows than `other` if `other` ceded one to it.

    Of two users of one key the users are compared, else the keys. Ceding brings the two closer, so rows that are ceded
    never go back and forth.
    """
    if account is other:
        return False
    if account.parent is not other.parent and account.parent is not None and other.parent is not None:
        account, other = account.parent, other.parent
    return (account.num_running + 1) * account.rate <= (other.num_running - 1) * other.rate


class Accounts:
    """All accounts. Those of tenants that left, and that would be lifted at return anyway, are forgotten."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self.root = Account("", None)
        self._until_sweep = _SWEEP_INTERVAL

    def enter(self, tenant: Tenant) -> Account:
        """The tenant's account, with one request more."""
        keys = self.root.children
        key = keys.get(tenant.key)
        if key is None:
            key = keys[tenant.key] = Account(tenant.key, self.root, self._weights.get(tenant.key, 1.0))
        account = key.children.get(tenant.user)
        if account is None:
            account = key.children[tenant.user] = Account(tenant.user, key)
        account.enter()
        return account

    def leave(self, account: Account) -> None:
        """One request fewer."""
        account.leave()
        if account.num_requests == 0:
            self._until_sweep -= 1
            if self._until_sweep == 0:
                self._sweep()

    def _sweep(self) -> None:
        for key in self.root.children.values():
            _forget_absent(key)
        _forget_absent(self.root)
        self._until_sweep = max(_SWEEP_INTERVAL, sum(len(key.children) for key in self.root.children.values()))


def _forget_absent(parent: Account) -> None:
    floor = parent.floor
    for name, child in list(parent.children.items()):
        if child.num_requests == 0 and child.served <= floor:
            del parent.children[name]


def _served(account: Account) -> float:
    return account.served


def _is_present(account: Account) -> bool:
    return account.num_requests > 0
