"""All requests that wait: in which line each stands, and until when."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from octavo.scheduler.request_state import Line, RequestState
from octavo.scheduler.waiting_line import WaitingLine

LATE_TURN = 4
"""While there are punctual requests, one admission in so many goes to a late one."""

_FIRST_SWEEP = 64
"""With so many alarms set, those that concern nobody any more are looked for the first time."""


class Waiting:
    """Three lines, each in the order of the policy.

    * The *short* line: everybody else.
    * The *long* line: those with more than `long_threshold` uncached tokens, who enter a few at a time and are
      overtaken by short ones meanwhile. Empty without a threshold.
    * The *late* line: those of the short line who cannot get their first token within the target any more. They let
      pass those who still can: under overload most requests are served in time instead of none. Empty without a target.
    """

    def __init__(self, long_threshold: int | None) -> None:
        self._long_threshold = long_threshold
        self._short = WaitingLine()
        self._long = WaitingLine()
        self._late = WaitingLine()
        self._late_times = _Alarms()
        self._timeouts = _Alarms()
        self._set_aside: list[tuple[Line, RequestState]] = []
        self._num_passed_by = 0
        self.num_requests = 0
        self.num_tokens = 0
        self.num_short_tokens = 0

    @property
    def num_late(self) -> int:
        return self._late.num_requests

    def add(self, state: RequestState, *, late_s: float | None = None, timeout_s: float | None = None) -> None:
        """Puts a request in line. From `late_s` on it is late; at `timeout_s` it has waited too long (clock times)."""
        long = self._long_threshold is not None and state.num_uncached_tokens > self._long_threshold
        (self._long if long else self._short).add(state)
        self.num_requests += 1
        self._count(state, state.num_tokens)
        if late_s is not None and not long:
            self._late_times.set(late_s, state)
        if timeout_s is not None:
            self._timeouts.set(timeout_s, state)

    def remove(self, state: RequestState) -> None:
        """Takes a request out of whatever line it stands in."""
        assert state.line is not None
        if state.line is self._late and self._short.num_requests:
            self._num_passed_by = 0
        elif state.line is self._short:
            self._num_passed_by += 1
        self._count(state, -state.num_tokens)
        state.line.remove(state)
        self.num_requests -= 1

    def set_aside(self, state: RequestState) -> None:
        """Lets those behind pass a request, until `restore`."""
        assert state.line is not None
        self._set_aside.append((state.line, state))
        state.line.remove(state)

    def restore(self) -> None:
        """Puts back who was set aside, to the same places."""
        for line, state in self._set_aside:
            line.add(state)
        self._set_aside.clear()

    @property
    def num_set_aside(self) -> int:
        return len(self._set_aside)

    def extended(self, state: RequestState, num_tokens: int) -> None:
        """A request that waits has so many known tokens more."""
        self._count(state, num_tokens)

    def _count(self, state: RequestState, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        if state.line is not self._long:
            self.num_short_tokens += num_tokens

    def first(self, *, long: bool) -> RequestState | None:
        return self._long.first() if long else self.first_short()

    def first_short(self) -> RequestState | None:
        """Who is next of those with a short prompt: the first punctual one, or in its turn the first late one."""
        if self._late.num_requests and (not self._short.num_requests or self._num_passed_by >= LATE_TURN - 1):
            return self._late.first()
        return self._short.first()

    def sort_out_late(self, now: float) -> None:
        """Moves those to the late line who are late by now."""
        for state in self._late_times.due(now):
            if state.line is self._short:
                self._short.remove(state)
                self._late.add(state)

    def timed_out(self, now: float) -> list[RequestState]:
        """Those who have waited too long by now; they are still in line."""
        return self._timeouts.due(now)


class _Alarms:
    """Requests by a time each, as long as they wait for their first turn.

    Those that have had it, or are gone, are dropped when their time comes, or when they may outnumber the rest: a time
    can be far off.
    """

    __slots__ = ("_heap", "_sweep_at", "_ticket")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, RequestState]] = []
        self._sweep_at = _FIRST_SWEEP
        self._ticket = count()

    def set(self, time_s: float, state: RequestState) -> None:
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        heappush(self._heap, (time_s, next(self._ticket), state))

    def due(self, now: float) -> list[RequestState]:
        """Takes out those whose time has come, the earliest first."""
        states = []
        while self._heap and self._heap[0][0] <= now:
            states.append(heappop(self._heap)[2])
        return [state for state in states if _awaits_first_turn(state)]

    def _sweep(self) -> None:
        self._heap = [alarm for alarm in self._heap if _awaits_first_turn(alarm[2])]
        heapify(self._heap)
        self._sweep_at = 2 * len(self._heap) + _FIRST_SWEEP


def _awaits_first_turn(state: RequestState) -> bool:
    return state.line is not None and not state.num_preemptions
