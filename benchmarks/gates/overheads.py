"""What stands beside the products: loading, Python's share of a step, an engine that has nothing to do."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.gates.apart import run_apart
from benchmarks.gates.gate import Gate
from benchmarks.gates.loaded import LoadedModel
from benchmarks.gates.models import Files
from benchmarks.machine import measure_state
from octavo.backends.native.library import Context

LOADS = 3
IDLE_AFTER_S, IDLE_DURING_S = 2.0, 3.0


def loading(context: Context, files: Files) -> Iterator[Gate]:
    """Seconds until an engine is ready, once its file is in the page cache; memory while the weights are packed."""
    for name, path, most_s in (
        ("SmolLM2", files.smollm2, 0.5),
        ("Qwen2.5-Coder-1.5B", files.qwen_large, 4.0),
        ("Gemma-3-270M", files.gemma3, None),
    ):
        state = measure_state(context)
        engines = [run_apart("loading", str(path), "--engine") for _ in range(LOADS)]
        weights = run_apart("loading", str(path))
        seconds = statistics.median(engine["seconds"] for engine in engines)
        if most_s is not None:
            note = f"opening and packing alone {weights['seconds']:.2f} s"
            yield Gate("loading", f"{name}, seconds", "s", most_s, seconds, state, note=note, at_most=True)
        note = (
            f"packed {weights['packed_bytes'] / 2**20:.0f} MiB, before {weights['before_bytes'] / 2**20:.0f}; "
            f"growth over packed {weights['growth_ratio']:.2f}x; peak of a whole engine {engines[0]['peak_ratio']:.2f}x"
        )
        ratio = weights["peak_ratio"]
        yield Gate("loading", f"{name}, peak over packed", "x", 1.3, ratio, state, note=note, at_most=True)


def steps(context: Context, files: Files) -> Iterator[Gate]:
    state = measure_state(context)
    for costs in run_apart("step_cost", str(files.smollm2)):
        running = costs["running"]
        parts = ", ".join(f"{part} {costs[part]:.0f}" for part in ("executor", "schedule", "output"))
        note = f"mean {costs['mean']:.0f} us; {parts}"
        name = f"Python in a step, {running} running, median"
        yield Gate("steps", name, "us", 50 + 2 * running, costs["step"], state, note=note, at_most=True)
    with LoadedModel(files.smollm2) as model:
        share = model.idle_cpu(IDLE_AFTER_S, IDLE_DURING_S)
    name = f"CPU of an engine idle for {IDLE_AFTER_S:.0f} s"
    yield Gate("steps", name, "%", 0.01, share, measure_state(context), at_most=True)
