"""What Python costs beside a step of the native library: python -m benchmarks.step_cost MODEL [--json OUT]

Requests that all decode, 1 to 256 of them, through the whole engine with the real model between, so that caches are as
cold as they are in use. Medians, in microseconds: what each part takes beside the foreign call, and all of `step()`.
`executor`: from a plan to arrays, and from arrays to its output. Bar for it, and aim for all: 50 + 2 a running request.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import measure_state
from octavo.backends.native.executor import NativeExecutor
from octavo.backends.native.library import Context, Program
from octavo.config import EngineArgs
from octavo.engine.build import build_engine
from octavo.engine.core import EngineCore
from octavo.engine.machine import read_machine
from octavo.engine.output import OutputProcessor
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.scheduler import Scheduler

NUM_RUNNING = (1, 16, 64, 128, 256)
NUM_STEPS = 40
PROMPT_TOKENS = 8
SAMPLING = SamplingParams(temperature=0.0, max_tokens=1_000, seed=0, ignore_eos=True)
PARTS = {
    "native": (Program, "run"),
    "executor": (NativeExecutor, "execute"),
    "schedule": (Scheduler, "schedule"),
    "update": (Scheduler, "update"),
    "output": (OutputProcessor, "append"),
    "step": (EngineCore, "step"),
}


class Stopwatch:
    """Seconds of each call of every part, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {part: [] for part in PARTS}
        for part, (owner, name) in PARTS.items():
            setattr(owner, name, self._timed(getattr(owner, name), self.seconds[part]))

    def _timed(self, function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments)
            seconds.append(time.perf_counter() - began)
            return result

        return timed

    def clear(self) -> None:
        for seconds in self.seconds.values():
            seconds.clear()

    def costs_us(self) -> dict[str, float]:
        """Medians; of the executor and of all, what is left without the foreign call."""
        seconds = self.seconds
        native = seconds["native"]
        beside = {
            part: [whole - inner for whole, inner in zip(seconds[part], native, strict=True)]
            for part in ("executor", "step")
        }
        return {part: 1e6 * median(values) for part, values in (seconds | beside).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model that is small, so that the engine's own cost shows")
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    context = Context(None, read_machine().num_cores)
    print(measure_state(context))
    context.close()
    core = build_engine(EngineArgs(model=args.model, max_model_len=512, max_num_seqs=max(NUM_RUNNING))).core
    stopwatch = Stopwatch()
    print("| running | schedule | executor | update | output | the rest | all | bar | native |")
    print("|---|---|---|---|---|---|---|---|---|")
    found = []
    for num_running in NUM_RUNNING:
        us = costs_us(core, stopwatch, num_running)
        found.append({"running": num_running, **us})
        rest = us["step"] - sum(us[part] for part in ("schedule", "executor", "update", "output"))
        print(
            f"| {num_running} | {us['schedule']:.0f} | {us['executor']:.0f} | {us['update']:.0f} | {us['output']:.0f} "
            f"| {rest:.0f} | {us['step']:.0f} | {50 + 2 * num_running} | {us['native']:.0f} |",
            flush=True,
        )
    core.close()
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


def costs_us(core: EngineCore, stopwatch: Stopwatch, num_running: int) -> dict[str, float]:
    rng = random.Random(num_running)
    for number in range(num_running):
        prompt = tuple(rng.choices(range(1_000, 9_000), k=PROMPT_TOKENS))
        core.add_request(Request(str(number), prompt, SAMPLING, frozenset(), time.monotonic()))
    while len(core.step()) < num_running:
        pass
    core.step()
    stopwatch.clear()
    for _ in range(NUM_STEPS):
        core.step()
    costs = stopwatch.costs_us()
    core.abort_all()
    return costs


if __name__ == "__main__":
    main()
