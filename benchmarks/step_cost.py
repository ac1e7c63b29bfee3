"""What Python costs beside a step of the native library: python -m benchmarks.step_cost MODEL [--json OUT]

Requests that all decode, 1 to 256 of them, through the whole engine with the real model between, so that caches are as
cold as they are in use; what a token stands for has been worked out before, as it has after a while. In microseconds:
all of `step()` beside the foreign call, median and mean, and then, of as many steps more, the median of each part.
`executor`: from a plan to arrays, and from arrays to its output. The aim for all: 50 + 2 a running request.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping
from itertools import repeat
from pathlib import Path
from statistics import fmean, median
from typing import Any, Self

from benchmarks.machine import state_now
from octavo.backends.native.executor import NativeExecutor
from octavo.backends.native.library import Program
from octavo.config import BLOCK_TOKENS, EngineArgs
from octavo.engine.build import build_engine
from octavo.engine.core import EngineCore
from octavo.engine.output import OutputProcessor
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.scheduler import Scheduler

NUM_RUNNING = (1, 16, 64, 128, 256)
NUM_WARM_UP_STEPS = 16
NUM_STEPS = 64
LEAST_PROMPT_TOKENS = 8
SAMPLING = SamplingParams(temperature=0.0, max_tokens=1_000, seed=0, ignore_eos=True)
WHOLE = {"native": (Program, "run"), "step": (EngineCore, "step")}
PARTS = WHOLE | {
    "executor": (NativeExecutor, "execute"),
    "schedule": (Scheduler, "schedule"),
    "update": (Scheduler, "update"),
    "output": (OutputProcessor, "go_on"),
}
COLUMNS = ("schedule", "executor", "update", "output", "rest", "native")


class Stopwatch:
    """Seconds of each call of every part, in order, while the watch runs."""

    def __init__(self, parts: Mapping[str, tuple[type, str]]) -> None:
        self.seconds: dict[str, list[float]] = {part: [] for part in parts}
        self._originals = {part: (owner, name, getattr(owner, name)) for part, (owner, name) in parts.items()}

    def __enter__(self) -> Self:
        for part, (owner, name, function) in self._originals.items():
            setattr(owner, name, self._timed(function, self.seconds[part]))
        return self

    def __exit__(self, *error: object) -> None:
        for owner, name, function in self._originals.values():
            setattr(owner, name, function)

    def _timed(self, function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments)
            seconds.append(time.perf_counter() - began)
            return result

        return timed

    def us(self, part: str) -> list[float]:
        """Microseconds of each call; of what makes the foreign call, without it."""
        native = self.seconds["native"] if part in ("executor", "step") else repeat(0.0)
        return [1e6 * (whole - inner) for whole, inner in zip(self.seconds[part], native, strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model that is small, so that the engine's own cost shows")
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    print(state_now())
    engine = build_engine(EngineArgs(model=args.model, max_model_len=512, max_num_seqs=max(NUM_RUNNING)))
    detokenizer = engine.tokenizer.detokenizer()
    for token_id in range(engine.tokenizer.vocab_size):
        detokenizer.append(token_id)
    core = engine.core
    print("| running | all, median | mean | bar | schedule | executor | update | output | the rest | native |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    found = []
    for num_running in NUM_RUNNING:
        us = costs_us(core, num_running)
        found.append({"running": num_running, **us})
        columns = (us["step"], us["mean"], 50 + 2 * num_running, *[us[part] for part in COLUMNS])
        print(f"| {num_running} | {' | '.join(f'{column:.0f}' for column in columns)} |", flush=True)
    core.close()
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


def costs_us(core: EngineCore, num_running: int) -> dict[str, float]:
    rng = random.Random(num_running)
    for number in range(num_running):
        num_tokens = LEAST_PROMPT_TOKENS + number % BLOCK_TOKENS  # so that not all fill their blocks in the same step
        prompt = tuple(rng.choices(range(1_000, 9_000), k=num_tokens))
        core.add_request(Request(str(number), prompt, SAMPLING, frozenset(), time.monotonic()))
    while len(core.step()) < num_running:
        pass
    for _ in range(NUM_WARM_UP_STEPS):
        core.step()
    whole, parts = _watched(core, WHOLE), _watched(core, PARTS)
    core.abort_all()
    us = {part: median(parts.us(part)) for part in PARTS}
    us["rest"] = us["step"] - sum(us[part] for part in ("schedule", "executor", "update", "output"))
    return us | {"step": median(whole.us("step")), "mean": fmean(whole.us("step"))}


def _watched(core: EngineCore, parts: Mapping[str, tuple[type, str]]) -> Stopwatch:
    with Stopwatch(parts) as watch:
        for _ in range(NUM_STEPS):
            core.step()
    return watch


if __name__ == "__main__":
    main()
