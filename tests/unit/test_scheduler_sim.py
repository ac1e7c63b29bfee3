"""What the scheduler promises, on small traces in simulated time: the same figures on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from benchmarks import traces
from benchmarks.scheduler_sim import fairness, goodput, percentile
from benchmarks.simulation import Demand, Limits, Outcome, Simulation
from octavo.config import PrefillLimits, QueueLimits, SchedulingConfig, SchedulingPolicy, ServiceTargets

SMALL = Limits(num_blocks=1024, max_num_seqs=16, max_num_batched_tokens=256)


def flooded(policy: SchedulingPolicy) -> Outcome:
    trace = traces.flood(1, num_polite=60, polite_per_s=1.0, num_flooding=1200, flood_per_s=20.0)
    return Simulation(trace, SchedulingConfig(policy=policy), limits=SMALL, until_s=60.0).run()


def ttft_p95(outcome: Outcome, tenant: str) -> float:
    return percentile([demand.ttft_s for demand in outcome.of(tenant)], 0.95)


def test_under_fair_a_flood_hardly_delays_others_and_costs_no_throughput() -> None:
    alone = traces.chat(1, num_requests=60, rate_per_s=1.0, tenant="polite")
    calm = Simulation(alone, SchedulingConfig(), limits=SMALL).run()
    fair, fcfs = flooded("fair"), flooded("fcfs")
    assert ttft_p95(fcfs, "polite") > 50 * ttft_p95(calm, "polite"), "there is no flood to protect from"
    assert ttft_p95(fair, "polite") <= 2 * ttft_p95(calm, "polite")
    assert fair.tokens_per_s >= 0.95 * fcfs.tokens_per_s


def test_two_floods_get_the_same_and_weights_divide_what_there_is() -> None:
    def race(weights: tuple[tuple[str, float], ...]) -> Outcome:
        trace = [
            Demand(0.0, tenant, (len(tenant), seed, *range(40)), 30)
            for seed in range(600)
            for tenant in ("first", "second")
        ]
        config = SchedulingConfig(weights=weights)
        return Simulation(trace, config, limits=SMALL, until_s=8.0).run()

    assert fairness(race(())) > 0.99
    served = race((("first", 3.0),)).served_tokens
    assert served["first"] / served["second"] == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_a_long_prompt_beside_short_ones_costs_them_less_than_their_pace(policy: SchedulingPolicy) -> None:
    limits = Limits(num_blocks=4000, max_num_seqs=16, max_num_batched_tokens=256)
    short = traces.chat(1, num_requests=400, rate_per_s=4.0, tenant="short")
    calm = Simulation(short, SchedulingConfig(policy=policy), limits=limits).run()
    trace = traces.long_prompts(1, num_short=400, short_per_s=4.0, num_long=1, every_s=20.0, long_tokens=40_000)
    config = SchedulingConfig(policy=policy, prefill=PrefillLimits(long_tokens=600))
    isolated = Simulation(trace, config, limits=limits).run()
    assert tpot_p95(isolated, "short") <= 2 * tpot_p95(calm, "short")
    assert ttft_p95(isolated, "short") <= 1.0
    assert len(isolated.of("long")) == 1, "the long prompt is served, too"


def tpot_p95(outcome: Outcome, tenant: str) -> float:
    return percentile([demand.tpot_s for demand in outcome.of(tenant) if demand.tpot_s is not None], 0.95)


def test_a_long_prompt_alone_gets_whole_steps() -> None:
    prompt = tuple(range(5000))
    config = SchedulingConfig(prefill=PrefillLimits(long_tokens=64))
    outcome = Simulation([Demand(0.0, "long", prompt, 2)], config, limits=SMALL).run()
    assert outcome.num_steps == -(-5000 // 256) + 1


def test_long_prompts_are_served_one_after_the_other() -> None:
    prompts = [tuple(range(start, start + 3000)) for start in (0, 5000, 10_000)]
    config = SchedulingConfig(policy="fcfs", prefill=PrefillLimits(long_tokens=64))
    trace = [Demand(0.0, "long", prompt, 2) for prompt in prompts]
    outcome = Simulation(trace, config, limits=SMALL).run()
    ttfts = [demand.ttft_s for demand in outcome.demands]
    assert ttfts == sorted(ttfts) and ttfts[0] < 0.6 * ttfts[1], "they share the steps"


TARGETS = ServiceTargets(ttft_s=0.5, tpot_s=0.04)


def summaries() -> Iterator[Demand]:
    """Long prompts and short answers: each prompt is a stall of 84 ms for everybody who decodes."""
    rng, arrival_s = random.Random(0), 0.0
    for _ in range(200):
        arrival_s += rng.expovariate(6.0)
        yield Demand(arrival_s, "all", tuple(rng.choices(range(9000), k=600)), 20)


def test_a_target_for_the_pace_holds_while_prompts_are_computed() -> None:
    def served(tpot_s: float | None) -> Outcome:
        limits = Limits(num_blocks=6000, max_num_seqs=32, max_num_batched_tokens=1024)
        return Simulation(summaries(), SchedulingConfig(targets=ServiceTargets(tpot_s=tpot_s)), limits=limits).run()

    free, paced = served(None), served(0.012)
    assert tpot_p95(free, "all") > 0.03, "the target asks for nothing"
    assert tpot_p95(paced, "all") <= 0.012 * 1.05
    assert paced.tokens_per_s >= 0.95 * free.tokens_per_s


def test_under_overload_targets_serve_most_in_time_instead_of_none() -> None:
    def served(targets: ServiceTargets) -> Outcome:
        trace = traces.chat(2, num_requests=800, rate_per_s=20.0)
        config = SchedulingConfig(policy="fcfs", targets=targets)
        return Simulation(trace, config, limits=Limits(num_blocks=2048, max_num_seqs=32)).run()

    assert goodput(served(ServiceTargets()), TARGETS) < 0.25
    assert goodput(served(TARGETS), TARGETS) > 0.5


def test_a_bounded_queue_refuses_the_rest() -> None:
    trace = [Demand(0.0, "all", (seed, *range(50)), 10) for seed in range(100)]
    config = SchedulingConfig(queue=QueueLimits(max_requests=20))
    outcome = Simulation(trace, config, limits=SMALL).run()
    assert outcome.num_refused == 100 - 20 - SMALL.max_num_seqs, "who finds a free row does not queue"
    assert len(outcome.demands) == 20 + SMALL.max_num_seqs


def test_agents_compute_only_what_is_new() -> None:
    trace = traces.agents(0, num_agents=8, num_turns=10, system_tokens=600, turn_tokens=100)
    outcome = Simulation(trace, SchedulingConfig(), limits=Limits(num_blocks=4000, max_num_seqs=8)).run()
    assert len(outcome.demands) == 80
    assert outcome.hit_rate > 0.85
