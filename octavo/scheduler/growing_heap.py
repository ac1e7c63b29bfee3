"""A heap whose items grow behind its back."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class GrowingHeap(Generic[T]):
    """Finds the item with the smallest value, when values change at any time but never decrease.

    An entry whose value is out of date is put right only when it comes to the top, so a change costs nothing and
    `first` pays O(log n) for each change it meets. Items of equal value come in the order in which they got it. An item
    may be pushed again while it is here; one that is no longer `wanted` is dropped when it comes to the top.
    """

    __slots__ = ("_entries", "_heap", "_ticket", "_value", "_wanted")

    def __init__(self, value: Callable[[T], float], wanted: Callable[[T], bool]) -> None:
        self._value = value
        self._wanted = wanted
        self._heap: list[tuple[float, int, T]] = []
        self._entries: set[int] = set()
        self._ticket = count()

    def push(self, item: T) -> None:
        if id(item) not in self._entries:
            self._entries.add(id(item))
            heappush(self._heap, (self._value(item), next(self._ticket), item))

    def first(self) -> T | None:
        heap = self._heap
        while heap:
            recorded, _, item = heap[0]
            if not self._wanted(item):
                heappop(heap)
                self._entries.remove(id(item))
                continue
            value = self._value(item)
            if value == recorded:
                return item
            heapreplace(heap, (value, next(self._ticket), item))
        return None
