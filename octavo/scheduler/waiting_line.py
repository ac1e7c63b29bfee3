"""Requests that wait, in the order in which they should be served."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from octavo.scheduler.accounts import Account
from octavo.scheduler.growing_heap import GrowingHeap
from octavo.scheduler.request_state import Rank, RequestState


class WaitingLine:
    """The first in line is the request with the least rank, of the least served user, of the least served key.

    Every operation costs O(log n), and a request that stays in line costs nothing, however many there are.
    """

    __slots__ = ("_keys", "_keys_by_account", "_users", "num_requests")

    def __init__(self) -> None:
        self._keys: GrowingHeap[_KeyLine] = GrowingHeap(_served, _is_wanted)
        self._keys_by_account: dict[Account, _KeyLine] = {}
        self._users: dict[Account, _UserLine] = {}
        self.num_requests = 0

    def __len__(self) -> int:
        return self.num_requests

    def add(self, state: RequestState) -> None:
        user = self._users.get(state.account)
        if user is None:
            user = self._add_user(state.account)
        state.line = self
        user.add(state)
        self.num_requests += 1

    def remove(self, state: RequestState) -> None:
        """Takes a request out of the line, wherever in it it stands."""
        account = state.account
        user = self._users[account]
        state.line = None
        user.remove(state)
        self.num_requests -= 1
        if user.num_requests == 0:
            del self._users[account]
            user.key.num_users -= 1
            if user.key.num_users == 0:
                del self._keys_by_account[user.key.account]

    def first(self) -> RequestState | None:
        key = self._keys.first()
        if key is None:
            return None
        user = key.users.first()
        assert user is not None
        return user.first()

    def _add_user(self, account: Account) -> _UserLine:
        assert account.parent is not None
        key = self._keys_by_account.get(account.parent)
        if key is None:
            key = self._keys_by_account[account.parent] = _KeyLine(account.parent)
        user = self._users[account] = _UserLine(self, account, key)
        key.num_users += 1
        key.users.push(user)
        self._keys.push(key)
        return user


class _KeyLine:
    """The users of one API key who have requests in line."""

    __slots__ = ("account", "num_users", "users")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.num_users = 0
        self.users: GrowingHeap[_UserLine] = GrowingHeap(_served, _is_wanted)

    @property
    def wanted(self) -> bool:
        return self.num_users > 0


class _UserLine:
    """The requests of one user, by rank.

    Who is taken out is dropped when it comes to the top, or when such outnumber the rest.
    """

    __slots__ = ("_heap", "_line", "account", "key", "num_requests")

    def __init__(self, line: WaitingLine, account: Account, key: _KeyLine) -> None:
        self._line = line
        self.account = account
        self.key = key
        self.num_requests = 0
        self._heap: list[tuple[Rank, RequestState]] = []

    @property
    def wanted(self) -> bool:
        return self.num_requests > 0

    def add(self, state: RequestState) -> None:
        self.num_requests += 1
        heappush(self._heap, (state.rank, state))

    def remove(self, state: RequestState) -> None:
        self.num_requests -= 1
        if self._heap[0][1] is state:
            heappop(self._heap)
        elif len(self._heap) > 2 * self.num_requests + 16:
            self._heap = [entry for entry in self._heap if entry[1].line is self._line]
            heapify(self._heap)

    def first(self) -> RequestState:
        while self._heap[0][1].line is not self._line:
            heappop(self._heap)
        return self._heap[0][1]


def _served(line: _KeyLine | _UserLine) -> float:
    return line.account.served


def _is_wanted(line: _KeyLine | _UserLine) -> bool:
    return line.wanted
