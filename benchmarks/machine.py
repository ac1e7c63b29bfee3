"""What the machine can do at this moment: the yardstick of every figure.

Machines are shared: barrier time and bandwidth may change within seconds, so they are measured beside each result and
results are compared only where they agree.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass

from octavo.backends.native.library import Context, Peak
from octavo.engine.machine import read_machine

SETTLED_BARRIER_NS = 2000.0  # threads that share a processor wait for each other 50 us
MOST_WAITS = 100
SLOW_BARRIER_NS = 180.0  # 58-70 in one state, 275-345 in the other
FAST_READ_GB_PER_S = 60.0  # 41-53 in one, 70-90 in the other
READ_BYTES = 256 * 2**20  # more than any cache holds


@dataclass(frozen=True, slots=True)
class State:
    """What changes from one moment to the next."""

    barrier_ns: float
    read_gb_per_s: float

    @property
    def name(self) -> str:
        """The two states between which virtual machines of this class flip, as docs/log.md calls them."""
        if self.barrier_ns < SLOW_BARRIER_NS and self.read_gb_per_s < FAST_READ_GB_PER_S:
            return "A"
        if self.barrier_ns >= SLOW_BARRIER_NS and self.read_gb_per_s >= FAST_READ_GB_PER_S:
            return "B"
        return "between A and B"

    def __str__(self) -> str:
        return f"barrier {self.barrier_ns:.0f} ns, read {self.read_gb_per_s:.1f} GB/s"


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a number of threads can reach. Bandwidths in 10^9 bytes, peaks in 10^9 operations a second."""

    isa: str
    threads: int
    barrier_ns: float
    read_huge_pages_gb_per_s: float
    read_small_pages_gb_per_s: float
    f32_gflops: float
    bf16_gflops: float
    int8_gops: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure_state(context: Context) -> State:
    settle(context)
    return State(_barrier_ns(context), max(context.read_gbps(READ_BYTES) for _ in range(3)))


def state_now() -> State:
    """With a team of all cores, which is gone again afterwards."""
    context = Context(None, read_machine().num_cores)
    state = measure_state(context)
    context.close()
    return state


def measure_ceilings(context: Context, repeats: int = 5) -> Ceilings:
    """Medians of bandwidths and barrier, best of the peaks."""
    settle(context)
    return Ceilings(
        isa=context.isa,
        threads=context.threads,
        barrier_ns=_barrier_ns(context),
        read_huge_pages_gb_per_s=statistics.median(context.read_gbps(READ_BYTES) for _ in range(repeats)),
        read_small_pages_gb_per_s=statistics.median(
            context.read_gbps(READ_BYTES, huge_pages=False) for _ in range(repeats)
        ),
        f32_gflops=context.peak_gops(Peak.F32),
        bf16_gflops=context.peak_gops(Peak.BF16),
        int8_gops=context.peak_gops(Peak.INT8),
    )


def settle(context: Context) -> None:
    """Wakes the team, and waits until each of its threads has a processor of its own."""
    for _ in range(MOST_WAITS):
        if context.barrier_ns(200) < SETTLED_BARRIER_NS:
            return
        time.sleep(0.002)


def _barrier_ns(context: Context) -> float:
    """The median of short bursts: one in which a thread loses its processor says nothing."""
    return statistics.median(context.barrier_ns(500) for _ in range(9))
