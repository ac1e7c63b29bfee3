"""A histogram cheap enough for the engine thread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts of observations at or below each of `bounds` (ascending), and above all of them; and their sum."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        """Record `value` `count` times."""
        self._counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def cumulative(self) -> list[int]:
        """Observations at or below each bound, then all of them: `len(bounds) + 1` numbers that never decrease."""
        return list(accumulate(self._counts))


def one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `limit`: bounds for counts of tokens."""
    bounds: list[float] = []
    decade = 1
    while decade <= limit:
        bounds.extend(digit * decade for digit in (1, 2, 5) if digit * decade <= limit)
        decade *= 10
    return tuple(bounds)
