"""Which cached block to give up first.

Only leaves of the prefix tree can go: without its beginning, the rest of a prefix is worth nothing. A leaf that goes
makes its parent the next candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from octavo.config import EvictionPolicy
from octavo.kvcache.prefix_tree import PrefixNode

Rank = tuple[int, int]

_MIN_HEAP_LIMIT = 1024


def _least_recently_used(node: PrefixNode) -> Rank:
    return node.last_used, 0


def _least_frequently_used(node: PrefixNode) -> Rank:
    return node.num_uses, node.last_used


_RANKS: dict[EvictionPolicy, Callable[[PrefixNode], Rank]] = {
    "lru": _least_recently_used,
    "lfu": _least_frequently_used,
}


class EvictionQueue:
    """The leaves nobody holds, the least useful first; those that a waiting request wants after the others.

    `is_candidate` says whether a node can go at all; what has been pushed and is none any more is skipped.
    """

    def __init__(self, policy: EvictionPolicy, is_candidate: Callable[[PrefixNode], bool]) -> None:
        rank = _RANKS[policy]
        self._unwanted = _LazyHeap(rank, lambda node: not node.num_wanted and is_candidate(node))
        self._wanted = _LazyHeap(rank, lambda node: bool(node.num_wanted) and is_candidate(node))

    def push(self, node: PrefixNode) -> None:
        """`node` is a candidate, or its rank or who wants it has changed."""
        (self._wanted if node.num_wanted else self._unwanted).push(node)

    def pop(self, *, spare_wanted: bool) -> PrefixNode | None:
        """The next to give up, or None; with `spare_wanted`, none that a waiting request wants."""
        node = self._unwanted.pop()
        return self._wanted.pop() if node is None and not spare_wanted else node

    def __contains__(self, node: PrefixNode) -> bool:
        return node in (self._wanted if node.num_wanted else self._unwanted)


class _LazyHeap:
    """Entries are not taken out when they cease to be true; they are skipped when they come up.

    An entry counts while its ticket is the latest of its node. O(log n) amortised for each operation: once more than
    half of the entries may be dead, the dead ones are swept out.
    """

    def __init__(self, rank: Callable[[PrefixNode], Rank], is_candidate: Callable[[PrefixNode], bool]) -> None:
        self._rank = rank
        self._is_candidate = is_candidate
        self._entries: list[tuple[Rank, int, PrefixNode]] = []
        self._num_tickets = 0
        self._limit = _MIN_HEAP_LIMIT

    def push(self, node: PrefixNode) -> None:
        self._num_tickets += 1
        node.ticket = self._num_tickets
        heappush(self._entries, (self._rank(node), node.ticket, node))
        if len(self._entries) > self._limit:
            self._sweep()

    def pop(self) -> PrefixNode | None:
        while self._entries:
            entry = heappop(self._entries)
            if self._counts(entry):
                return entry[2]
        return None

    def __contains__(self, node: PrefixNode) -> bool:
        return any(entry[2] is node and self._counts(entry) for entry in self._entries)

    def _counts(self, entry: tuple[Rank, int, PrefixNode]) -> bool:
        _, ticket, node = entry
        return ticket == node.ticket and self._is_candidate(node)

    def _sweep(self) -> None:
        self._entries = [entry for entry in self._entries if self._counts(entry)]
        heapify(self._entries)
        self._limit = max(_MIN_HEAP_LIMIT, 2 * len(self._entries))
