"""What a step costs in the scheduler: python -m benchmarks.scheduler_cost [--profile]

Time of `schedule()` and `update()` together, without backend or engine: batches that decode, with and without requests
waiting behind them. Medians, in microseconds. Bars: 30 + 3 a running request; 10,000 waiting cost at most 200 more.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import time
from statistics import median

from benchmarks.machine import state_now
from octavo.config import SchedulingConfig, SchedulingPolicy
from octavo.kvcache.kv_cache import KvCache
from octavo.request import Request, Tenant
from octavo.sampling_params import SamplingParams
from octavo.scheduler.policies.registry import POLICIES
from octavo.scheduler.scheduler import Scheduler
from octavo.step import StepOutput, StepPlan

NUM_STEPS = 300
PROMPT_TOKENS = 64
SAMPLING = SamplingParams(temperature=0.0, max_tokens=100_000, seed=0, ignore_eos=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="show where the time goes at 256 running")
    args = parser.parse_args()
    if args.profile:
        profile()
        return
    print(state_now())
    print("| policy | running | waiting | tenants | us a step | bar |")
    print("|---|---|---|---|---|---|")
    for policy in POLICIES:
        for num_running, num_waiting, num_tenants in (
            (1, 0, 1),
            (64, 0, 1),
            (256, 0, 1),
            (256, 10_000, 1),
            (256, 10_000, 100),
            (256, 10_000, 10_000),
        ):
            scheduler = loaded(policy, num_running, num_waiting, num_tenants)
            bar = 30 + 3 * num_running + (200 if num_waiting else 0)
            us = median([step_us(scheduler) for _ in range(NUM_STEPS)])
            print(f"| {policy} | {num_running} | {num_waiting:,} | {num_tenants:,} | {us:.0f} | {bar} |", flush=True)


def loaded(policy: SchedulingPolicy, num_running: int, num_waiting: int, num_tenants: int) -> Scheduler:
    """A scheduler whose rows are all decoding, with requests of many tenants behind them."""
    rng = random.Random(0)
    scheduler = Scheduler(
        KvCache(60_000),
        max_num_seqs=num_running,
        max_num_batched_tokens=max(512, num_running),
        config=SchedulingConfig(policy=policy),
    )
    for number in range(num_running + num_waiting):
        prompt = tuple(rng.choices(range(49_000), k=PROMPT_TOKENS))
        tenant = Tenant("", str(number % num_tenants))
        scheduler.add(Request(str(number), prompt, SAMPLING, frozenset(), time.monotonic(), tenant=tenant))
    while scheduler.num_running < num_running:
        step_us(scheduler)
    for _ in range(20):
        step_us(scheduler)
    return scheduler


def step_us(scheduler: Scheduler) -> float:
    began = time.perf_counter()
    plan = scheduler.schedule()
    scheduled = time.perf_counter()
    output = answer(plan)
    answered = time.perf_counter()
    scheduler.update(output)
    return (time.perf_counter() - answered + scheduled - began) * 1e6


def answer(plan: StepPlan) -> StepOutput:
    return StepOutput([7] * len(plan.sampling_rows))


def profile() -> None:
    scheduler = loaded("fair", 256, 10_000, 100)
    profiler = cProfile.Profile()
    for _ in range(NUM_STEPS):
        profiler.enable()
        plan = scheduler.schedule()
        profiler.disable()
        output = answer(plan)
        profiler.enable()
        scheduler.update(output)
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
