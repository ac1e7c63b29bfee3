"""What each way of choosing a token adds to a decode step of many rows.

    python -m benchmarks.sampling MODEL.gguf [--rows 64] [--rounds 12]

Ways alternate in one sitting; figures are medians of whole steps, in milliseconds.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median

from benchmarks.machine import state_now
from octavo.backends.native.executor import NativeExecutor
from octavo.sampling_params import SamplingParams
from octavo.step import RowStart, RowStep, StepPlan
from octavo.tokenizer.gguf import load_tokenizer
from octavo.weights.loader import open_checkpoint

TEXT = (
    "The library at the end of the street had been closed for years, but on that evening a light burned behind one of "
    "its windows. Nobody who passed could say who had lit it, and most of them did not ask. Rain had begun to fall, "
    "and the people hurried home with their collars turned up, thinking of supper and of the work left undone. "
) * 3  # what follows random tokens is anything: no model is asked to go on from those
PROMPT_TOKENS = 16
BLOCKS_A_ROW = 16

WAYS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "top_k 40": {"temperature": 1.0, "top_k": 40},
    "top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "top_k 40, top_p 0.9, min_p 0.05": {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "greedy with penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.5},
    "greedy with 5 logprobs": {"temperature": 0.0, "logprobs": 5},
    "greedy with a mask": {"temperature": 0.0, "allowed_token_ids": tuple(range(0, 40_000, 2))},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    with open_checkpoint(args.model) as checkpoint:
        text = load_tokenizer(checkpoint.tokenizer).encode(TEXT)
        executor = NativeExecutor(checkpoint, isa=None, threads=args.threads, activation_dtype="int8")
    executor.allocate(
        [args.rows * BLOCKS_A_ROW] * len(executor.kv_groups), args.rows, args.rows * PROMPT_TOKENS, 16 * BLOCKS_A_ROW
    )
    times = measure(executor, text, args.rows, args.rounds)
    print(f"{args.rows} rows of one token, {executor.threads} threads, {executor.isa}; {state_now()}")
    for way, milliseconds in times.items():
        print(f"  {way:<34} {milliseconds:7.2f} ms   {milliseconds - times['greedy']:+6.2f}")


def measure(executor: NativeExecutor, text: list[int], num_rows: int, rounds: int) -> dict[str, float]:
    starts = [row * 7 % (len(text) - PROMPT_TOKENS) for row in range(num_rows)]
    prompts = [text[start : start + PROMPT_TOKENS] for start in starts]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, fields in WAYS.items():
            seconds[way].append(_decode_time(executor, prompts, SamplingParams(max_tokens=None, seed=0, **fields)))  # type: ignore[arg-type]
    return {way: 1000 * median(found) for way, found in seconds.items()}


def _decode_time(executor: NativeExecutor, prompts: list[list[int]], sampling: SamplingParams) -> float:
    """Seconds of the median of a few decode steps after the prompts have been computed."""
    num_groups = len(executor.kv_groups)
    starts = tuple(RowStart(row, tuple(prompt), len(prompt), sampling) for row, prompt in enumerate(prompts))
    blocks = [tuple(range(row * BLOCKS_A_ROW, (row + 1) * BLOCKS_A_ROW)) for row in range(len(prompts))]
    executor.execute(
        StepPlan(
            starts,
            tuple(RowStep(row, 0, PROMPT_TOKENS, (ids,) * num_groups, samples=True) for row, ids in enumerate(blocks)),
        )
    )
    times = []
    plan = StepPlan((), (), decoding=tuple(range(len(prompts))))
    for _ in range(5):
        began = time.perf_counter()
        executor.execute(plan)
        times.append(time.perf_counter() - began)
    return median(times)


if __name__ == "__main__":
    main()
