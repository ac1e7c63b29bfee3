"""Run by test_step_system.py in a process of its own: step_in_a_cage.py DRIVER.so allocations|calls FAMILY...

Prints how often steps of each family allocate, or ends as `exit_after_runs_without_system_calls` in count_system.c
says.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import numpy as np

from octavo.backends.native import abi
from octavo.backends.native.executor import NativeExecutor
from octavo.backends.native.library import Program, library
from octavo.sampling_params import SamplingParams
from octavo.step import RowStart, RowStep, StepPlan
from octavo.weights.gguf import GGUFType
from tests.native.tiny import FAMILIES, TinyModel

PROMPT_TOKENS = 40
TIMES = 50
TYPES = (GGUFType.Q4_0, GGUFType.Q8_0, GGUFType.F16, GGUFType.Q5_1, GGUFType.Q4_1)
SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, top_p=0.9, top_k=40, min_p=0.01, seed=1),
    SamplingParams(temperature=0.7, logprobs=3, frequency_penalty=0.5, repetition_penalty=1.1, logit_bias={5: 1.0}),
    SamplingParams(temperature=0.0, prompt_logprobs=2),
)


class Last:
    """The arguments of the last call of the library that ran a step."""

    program: Program
    step: abi.Step

    def __init__(self) -> None:
        run = Program.run

        def remembered(program: Program, step: abi.Step) -> None:
            self.program, self.step = program, step
            run(program, step)

        Program.run = remembered  # type: ignore[method-assign]


def plan_of(rng: np.random.Generator, vocab_size: int, num_groups: int) -> StepPlan:
    """Rows that compute prompts of 40 tokens, in three blocks each, and sample in many ways."""
    starts, steps = [], []
    for row, sampling in enumerate(SAMPLINGS):
        prompt = tuple(rng.integers(0, vocab_size, PROMPT_TOKENS).tolist())
        starts.append(RowStart(row, prompt, PROMPT_TOKENS, sampling))
        blocks = (tuple(range(3 * row, 3 * row + 3)),) * num_groups
        scored = range(PROMPT_TOKENS - 1) if sampling.prompt_logprobs else range(0)
        steps.append(RowStep(row, 0, PROMPT_TOKENS, blocks, samples=True, scored_positions=scored))
    return StepPlan(tuple(starts), tuple(steps))


def warmed_up(family: str, num_threads: int) -> NativeExecutor:
    """An executor that has run one step."""
    rng = np.random.default_rng()
    executor = NativeExecutor(
        TinyModel(rng, FAMILIES[family](), TYPES).checkpoint, isa=None, threads=num_threads, activation_dtype="int8"
    )
    num_groups = len(executor.kv_groups)
    executor.allocate([64] * num_groups, max_num_seqs=8, max_num_batched_tokens=256, max_model_len=96)
    executor.execute(plan_of(rng, executor.vocab_size, num_groups))
    return executor


def main() -> None:
    driver = ctypes.CDLL(sys.argv[1])
    driver.count_allocations.restype = ctypes.c_long
    question, *families = sys.argv[2:]
    processors = sorted(os.sched_getaffinity(0))
    run = ctypes.cast(library().oct_run, ctypes.c_void_p)
    last = Last()
    for family in families:
        executor = warmed_up(family, max(2, len(processors)))
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, processors[:1])  # where the team wants its first thread
        arguments = (run, ctypes.c_void_p(last.program.handle), ctypes.byref(last.step), TIMES)
        if question == "calls":
            driver.exit_after_runs_without_system_calls(*arguments)
        print(family, driver.count_allocations(*arguments))
        os.sched_setaffinity(0, before)
        executor.close()


if __name__ == "__main__":
    main()
