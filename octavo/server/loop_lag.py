"""How late the event loop is: what every client waits for when something holds the loop up."""

from __future__ import annotations

import asyncio

from octavo.metrics.histogram import Histogram

PROBE_INTERVAL_S = 0.05


async def measure_loop_lag(lag: Histogram) -> None:
    """Observes, again and again, by how many seconds a timer fires too late. Runs until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PROBE_INTERVAL_S
        await asyncio.sleep(PROBE_INTERVAL_S)
        lag.observe(max(0.0, loop.time() - due))
