"""The order in which waiting requests are served."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kvcache.kv_cache import KvCache
from octavo.request import ANONYMOUS, Request, Tenant
from octavo.sampling_params import SamplingParams
from octavo.scheduler.policies.policy import Policy
from octavo.scheduler.policies.priority import AGEING_S
from octavo.scheduler.policies.registry import POLICIES
from octavo.scheduler.policies.shortest import MAX_OVERTAKEN_S
from octavo.scheduler.request_state import RequestState
from octavo.scheduler.service_order import EQUAL_S, ServiceOrder
from octavo.scheduler.waiting_line import WaitingLine


class Line:
    """A waiting line whose requests are made on the spot; names are unique."""

    def __init__(self, policy: Policy, weights: Mapping[str, float] | None = None) -> None:
        self.kv = KvCache(1)
        self.order = ServiceOrder(policy, weights or {})
        self.line = WaitingLine()
        self.states: dict[str, RequestState] = {}

    def add(
        self,
        name: str,
        *,
        arrival_s: float = 0.0,
        length: int = 10,
        cached: int = 0,
        priority: int = 0,
        tenant: Tenant = ANONYMOUS,
    ) -> RequestState:
        request = Request(
            name, (3,) * length, SamplingParams(max_tokens=1, seed=0), frozenset(), arrival_s, priority=priority,
            tenant=tenant,
        )  # fmt: skip
        state = RequestState(request, self.kv.open(request.prefix_key), self.order.enter(request))
        state.rank = self.order.rank(request, cached)
        self.line.add(state)
        self.states[name] = state
        return state

    def take(self) -> RequestState | None:
        """The next one, out of the line."""
        state = self.line.first()
        if state is not None:
            self.line.remove(state)
        return state

    def drain(self) -> Iterator[str]:
        while (state := self.take()) is not None:
            yield state.request_id


def test_fcfs_is_in_order_of_arrival_whatever_is_asked() -> None:
    line = Line(POLICIES["fcfs"])
    line.add("c", arrival_s=3.0, length=1)
    line.add("a", arrival_s=1.0, length=900, priority=9)
    line.add("b", arrival_s=2.0, length=5, priority=-9)
    assert list(line.drain()) == ["a", "b", "c"]


def test_among_equals_the_longest_cached_prefix_goes_first() -> None:
    line = Line(POLICIES["fcfs"])
    line.add("cold", arrival_s=EQUAL_S * 10)
    line.add("warm", arrival_s=EQUAL_S * 10.5, cached=8)
    line.add("later", arrival_s=EQUAL_S * 11.5, cached=9)
    assert list(line.drain()) == ["warm", "cold", "later"]


def test_a_lower_priority_value_goes_first() -> None:
    line = Line(POLICIES["priority"])
    for name, priority in (("default", 0), ("batch", 5), ("urgent", -3), ("second", 0)):
        line.add(name, priority=priority)
    assert list(line.drain()) == ["urgent", "default", "second", "batch"]


@given(priority=st.integers(-50, 50), lead=st.integers(1, 100))
def test_priority_ages(priority: int, lead: int) -> None:
    """Whoever is `lead` steps less urgent is overtaken by who comes within lead * AGEING_S, by nobody later."""
    line = Line(POLICIES["priority"])
    line.add("old", arrival_s=1000.0, priority=priority + lead)
    line.add("soon", arrival_s=1000.0 + lead * AGEING_S - 2 * EQUAL_S, priority=priority)
    line.add("too late", arrival_s=1000.0 + lead * AGEING_S + 2 * EQUAL_S, priority=priority)
    assert list(line.drain()) == ["soon", "old", "too late"]


def test_shortest_goes_by_what_is_not_cached() -> None:
    line = Line(POLICIES["shortest"])
    line.add("long", length=3000)
    line.add("cached", length=4000, cached=3900)
    line.add("middle", length=800)
    assert list(line.drain()) == ["cached", "middle", "long"]


@given(length=st.integers(1, 10**6), other=st.integers(1, 10**6))
def test_nobody_is_overtaken_by_who_arrives_much_later(length: int, other: int) -> None:
    line = Line(POLICIES["shortest"])
    line.add("old", length=length, arrival_s=50.0)
    line.add("new", length=other, arrival_s=50.0 + MAX_OVERTAKEN_S + 2 * EQUAL_S)
    assert list(line.drain()) == ["old", "new"]


def serve(line: Line, count: int, cost: int = 10) -> list[str]:
    """Takes and charges `count` requests; gives their tenants, who keep the same number in line."""
    served = []
    for number in range(count):
        state = line.take()
        assert state is not None
        state.account.charge(cost)
        tenant = state.request.tenant
        served.append(tenant.user or tenant.key)
        line.add(f"{state.request_id}.{number}", tenant=tenant, arrival_s=float(number))
        line.order.leave(state)
    return served


def test_fair_serves_whoever_was_served_least() -> None:
    line = Line(POLICIES["fair"])
    for number in range(50):
        line.add(f"flood {number}", tenant=Tenant("flood"))
    line.add("polite", tenant=Tenant("polite"))
    served = serve(line, 40)
    assert abs(served.count("polite") - served.count("flood")) <= 1


def test_weights_are_shares() -> None:
    line = Line(POLICIES["fair"], {"gold": 3.0})
    for name in ("gold", "base"):
        line.add(name, tenant=Tenant(name))
    served = serve(line, 80)
    assert abs(served.count("gold") - 60) <= 1


def test_inventing_users_buys_no_share_of_another_key() -> None:
    line = Line(POLICIES["fair"])
    for number in range(20):
        line.add(f"greedy {number}", tenant=Tenant("greedy", f"user {number}"))
    line.add("plain", tenant=Tenant("plain"))
    served = serve(line, 80)
    assert abs(served.count("plain") - 40) <= 1
    assert max(served.count(f"user {number}") for number in range(20)) <= 3


def test_being_away_saves_nothing_up() -> None:
    line = Line(POLICIES["fair"])
    line.add("worker", tenant=Tenant("worker"))
    serve(line, 1000)
    line.add("returned", tenant=Tenant("returned"))
    served = serve(line, 40)
    assert abs(served.count("returned") - 20) <= 1, "the past is not caught up with"


def test_a_heavy_past_is_remembered_by_who_was_there_too() -> None:
    line = Line(POLICIES["fair"])
    heavy = line.add("heavy", tenant=Tenant("heavy"))
    line.add("light", tenant=Tenant("light"))
    line.line.remove(heavy)
    heavy.account.charge(200)
    line.order.leave(heavy)
    line.add("heavy again", tenant=Tenant("heavy"))
    served = serve(line, 20)
    assert served == ["light"] * 20, "leaving for a moment must not wipe out what one was served"


def test_priorities_order_a_tenants_own_requests_only() -> None:
    line = Line(POLICIES["fair"])
    line.add("a late", tenant=Tenant("a"), priority=5)
    line.add("a urgent", tenant=Tenant("a"), priority=-100)
    line.add("b", tenant=Tenant("b"))
    line.states["a late"].account.charge(1)
    assert list(line.drain()) == ["b", "a urgent", "a late"]


def test_accounts_of_those_who_left_are_forgotten() -> None:
    line = Line(POLICIES["fair"])
    for number in range(5000):
        state = line.add(f"r{number}", tenant=Tenant("key", f"user {number}"))
        line.line.remove(state)
        state.account.charge(1)
        line.order.leave(state)
    root = line.order._accounts.root
    assert sum(len(key.children) for key in root.children.values()) < 2100


def assert_first(state: RequestState, waiting: list[RequestState]) -> None:
    """Its key, its user of that key, and itself among that user's requests are served least, or rank first."""
    account = state.account
    same_key = [other for other in waiting if other.account.parent is account.parent]
    assert account.parent is not None
    assert account.parent.served == min(other.account.parent.served for other in waiting if other.account.parent)
    assert account.served == min(other.account.served for other in same_key)
    assert state.rank == min(other.rank for other in same_key if other.account is account)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_line_agrees_with_a_sort(name: str, seed: int) -> None:
    """Heaps with lazy removal and counters that change behind them, against comparing all places every time."""
    rng = random.Random(seed)
    line = Line(POLICIES[name])  # type: ignore[index]
    waiting: dict[str, RequestState] = {}
    for number in range(300):
        if rng.random() < 0.5:
            tenant = Tenant(f"key {rng.randrange(3)}", f"user {rng.randrange(4)}")
            waiting[str(number)] = line.add(
                str(number), arrival_s=rng.random() * 20, length=rng.randrange(1, 3000), cached=0,
                priority=rng.randrange(-2, 3), tenant=tenant,
            )  # fmt: skip
        elif waiting and rng.random() < 0.3:
            state = waiting.pop(rng.choice(list(waiting)))
            line.line.remove(state)
            line.order.leave(state)
        elif waiting:
            state = line.take()
            assert state is not None
            assert_first(state, list(waiting.values()))
            del waiting[state.request_id]
            state.account.charge(rng.randrange(1, 50))
            line.order.leave(state)
        assert len(line.line) == len(waiting)
