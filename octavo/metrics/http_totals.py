"""How many HTTP requests there were, of what kind, and how long they took."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from octavo.metrics.histogram import Histogram

_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_DURATION_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`path` is a route's template, never the path a client sent: the number of label values stays bounded."""

    method: str
    path: str


class HttpTotals:
    """Added to by the event loop's thread. `loop_lag` is by how many seconds its timers fire too late."""

    def __init__(self) -> None:
        self.requests: dict[tuple[Endpoint, str], int] = defaultdict(int)
        self.loop_lag = Histogram(_LAG_S)
        self.durations: dict[Endpoint, Histogram] = defaultdict(lambda: Histogram(_DURATION_S))

    def add(self, endpoint: Endpoint, status: int, seconds: float) -> None:
        """`seconds` is the time until the last byte of the answer; `status` is counted by class ("2xx")."""
        self.requests[endpoint, f"{status // 100}xx"] += 1
        self.durations[endpoint].observe(seconds)
