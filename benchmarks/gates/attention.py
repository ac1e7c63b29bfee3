"""Decoding with 64 requests at a context of 500: reading the KV cache is all that takes time."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.attention import SMOLLM2, Case
from benchmarks.attention import measure as measure_cases
from benchmarks.gates.gate import Gate
from benchmarks.machine import State
from octavo.backends.native.library import Context

CASE = Case(SMOLLM2, num_requests=64, num_tokens=1, context=500)
REPEATS = 3


def measure(context: Context) -> Iterator[Gate]:
    (figure,) = measure_cases(context, [CASE], REPEATS)
    state = State(figure.barrier_ns, figure.read_gb_per_s)
    note = f"{figure.ms:.1f} ms, {figure.kv_gb_per_s:.1f} GB/s"
    name = "64 requests at context 500, bf16 KV"
    yield Gate("attention", name, "%", 0.85, figure.of_floor, state, figure.of_floor, note=note)
