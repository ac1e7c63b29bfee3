"""Decoding with 64 requests at a context of 500: reading the KV cache is all that takes time, and int8 halves it."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.attention import SMOLLM2, Case, Figure
from benchmarks.attention import measure as measure_cases
from benchmarks.gates.gate import Gate
from benchmarks.machine import State
from octavo.backends.native.library import Context

BF16 = Case(SMOLLM2, num_requests=64, num_tokens=1, context=500)
INT8 = Case(SMOLLM2, num_requests=64, num_tokens=1, context=500, dtype="int8")
REPEATS = 7


def measure(context: Context) -> Iterator[Gate]:
    bf16, int8 = measure_cases(context, [BF16, INT8], REPEATS)
    name = "64 requests at context 500"
    yield Gate("attention", f"{name}, bf16 KV", "%", 0.85, bf16.of_floor, _state(bf16), bf16.of_floor, note=_note(bf16))
    note = f"{_note(int8)}; bf16 KV: {_note(bf16)}"
    ratio = bf16.ms / int8.ms
    yield Gate("attention", f"{name}, int8 KV over bf16 KV", "x", 1.6, ratio, _state(int8), int8.of_floor, note=note)


def _state(figure: Figure) -> State:
    return State(figure.barrier_ns, figure.read_gb_per_s)


def _note(figure: Figure) -> str:
    return f"{figure.ms:.1f} ms, {figure.kv_gb_per_s:.1f} of {figure.read_gb_per_s:.0f} GB/s"
