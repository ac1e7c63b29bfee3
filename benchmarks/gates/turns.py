"""Contenders that are measured in turns, so that none has the machine's better moments for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.machine import State, measure_state
from octavo.backends.native.library import Context

STATES_DIFFER = 1.25  # read bandwidth before and after, as a ratio


@dataclass(frozen=True, slots=True)
class Speed:
    """What one turn reached, and the machine around it: the mean of before and after."""

    tokens_per_s: float
    state: State
    is_steady: bool = True


def take_turns(context: Context, contenders: Mapping[str, Callable[[], float]], turns: int) -> dict[str, Speed]:
    """The median turn of each contender; of those in which the machine stayed in one state, if there are any."""
    found: dict[str, list[Speed]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, run in contenders.items():
            found[name].append(timed(context, run))
    return {name: median(speeds) for name, speeds in found.items()}


def timed(context: Context, run: Callable[[], float]) -> Speed:
    before = measure_state(context)
    tokens_per_s = run()
    after = measure_state(context)
    reads = sorted((before.read_gb_per_s, after.read_gb_per_s))
    state = State((before.barrier_ns + after.barrier_ns) / 2, sum(reads) / 2)
    return Speed(tokens_per_s, state, is_steady=reads[1] < STATES_DIFFER * reads[0])


def median(speeds: list[Speed]) -> Speed:
    steady = [speed for speed in speeds if speed.is_steady] or speeds
    return sorted(steady, key=lambda speed: speed.tokens_per_s)[(len(steady) - 1) // 2]
