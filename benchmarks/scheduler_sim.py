"""Policies against traffic, in simulated time: python -m benchmarks.scheduler_sim [TRACE ...] [--scale X]

The real scheduler and KV cache, a machine of known law (simulation.py). Traces: chat (100,000 requests), flood (two
tenants of which one asks for several times what the machine can do), long (prompts of 100,000 tokens among short ones),
agents (conversations that grow turn by turn), targets (overload with service levels). `--scale 0.1` is a tenth of it.
The machine is simulated, the scheduler's own time is not part of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from benchmarks import traces
from benchmarks.simulation import Limits, Outcome, Simulation
from octavo.config import PrefillLimits, SchedulingConfig, SchedulingPolicy, ServiceTargets
from octavo.scheduler.policies.registry import POLICIES

TARGETS = ServiceTargets(ttft_s=0.5, tpot_s=0.05)
ISOLATED = PrefillLimits(long_tokens=1024)
LONG_LIMITS = Limits(num_blocks=24_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", choices=[*_REPORTS, []], default=list(_REPORTS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    args = parser.parse_args()
    for name in args.traces:
        began = time.perf_counter()
        print(f"\n## {name}\n")
        _REPORTS[name](args.scale, args.policies)
        print(f"\n(simulated in {time.perf_counter() - began:.0f} s)")


def report_chat(scale: float, policies: Sequence[SchedulingPolicy]) -> None:
    """100,000 requests at about nine tenths of what the machine can do."""
    _header()
    for policy in policies:
        trace = traces.chat(0, num_requests=int(100_000 * scale), rate_per_s=CHAT_PER_S)
        _row(policy, Simulation(trace, SchedulingConfig(policy=policy)).run())


def report_flood(scale: float, policies: Sequence[SchedulingPolicy]) -> None:
    """Bars: polite P95 TTFT under fair at most twice that alone; throughput within 5 % of fcfs."""
    _header()
    num_polite = int(2000 * scale)
    alone = traces.chat(0, num_requests=num_polite, rate_per_s=POLITE_PER_S, tenant="polite")
    calm = Simulation(alone, SchedulingConfig()).run()
    _row("alone", calm)
    for policy in policies:
        outcome = flooded(policy, num_polite)
        _row(policy, outcome)
        ratio = ttft_p95(outcome, "polite") / ttft_p95(calm, "polite")
        print(f"| | polite: P95 TTFT {ratio:.2f} x that alone |")


def report_long(scale: float, _: Sequence[SchedulingPolicy]) -> None:
    """Bar: with isolation, P95 TPOT of short requests during a long prefill at most twice the calm value."""
    _header()
    for name, config in (
        ("fcfs", SchedulingConfig(policy="fcfs")),
        ("fair", SchedulingConfig()),
        ("shortest", SchedulingConfig(policy="shortest")),
        ("fcfs, isolated", SchedulingConfig(policy="fcfs", prefill=ISOLATED)),
        ("fair, isolated", SchedulingConfig(prefill=ISOLATED)),
        ("fair, 50 ms a token", SchedulingConfig(targets=TARGETS)),
    ):
        outcome, calm, busy = beside_long_prompts(config, max(1, int(4 * scale)))
        _row(name, outcome)
        print(f"| | short: P95 TPOT {calm * 1e3:.1f} ms calm, {busy * 1e3:.1f} ms beside a long prefill |")


def report_agents(scale: float, policies: Sequence[SchedulingPolicy]) -> None:
    """100 agents with one system prompt, 20 turns each."""
    _header()
    for policy in policies:
        trace = traces.agents(0, num_agents=int(100 * scale), num_turns=20)
        _row(policy, Simulation(trace, SchedulingConfig(policy=policy), limits=Limits(num_blocks=20_000)).run())


def report_targets(scale: float, _: Sequence[SchedulingPolicy]) -> None:
    """A fifth more than the machine can do: goodput is the share of requests within 500 ms and 50 ms a token."""
    _header()
    for name, config in (
        ("fcfs", SchedulingConfig(policy="fcfs")),
        ("shortest", SchedulingConfig(policy="shortest")),
        ("fcfs, targets", SchedulingConfig(policy="fcfs", targets=TARGETS)),
        ("fair, targets", SchedulingConfig(targets=TARGETS)),
    ):
        trace = traces.chat(0, num_requests=int(10_000 * scale), rate_per_s=CHAT_PER_S * 1.3)
        outcome = Simulation(trace, config).run()
        _row(name, outcome)
        print(f"| | goodput {goodput(outcome, TARGETS):.1%} |")


CHAT_PER_S = 15.0
POLITE_PER_S = 1.5
FLOOD_PER_S = 30.0

_REPORTS: dict[str, Callable[[float, Sequence[SchedulingPolicy]], None]] = {
    "chat": report_chat,
    "flood": report_flood,
    "long": report_long,
    "agents": report_agents,
    "targets": report_targets,
}


def flooded(policy: SchedulingPolicy, num_polite: int) -> Outcome:
    """The polite tenant's requests beside a flood, until the last of them has come."""
    until_s = num_polite / POLITE_PER_S
    trace = traces.flood(
        0,
        num_polite=num_polite,
        polite_per_s=POLITE_PER_S,
        num_flooding=int(until_s * FLOOD_PER_S),
        flood_per_s=FLOOD_PER_S,
    )
    return Simulation(trace, SchedulingConfig(policy=policy), until_s=until_s).run()


def beside_long_prompts(config: SchedulingConfig, num_long: int) -> tuple[Outcome, float, float]:
    """Also the 95th percentile of TPOT of short requests: of those that ran in calm, and while a long one prefilled."""
    every_s = 200.0
    trace = traces.long_prompts(
        0, num_short=int(3 * every_s * (num_long + 1)), short_per_s=3.0, num_long=num_long, every_s=every_s
    )
    outcome = Simulation(trace, config, limits=LONG_LIMITS).run()
    prefills = [(demand.arrival_s, demand.first_token_s or 0.0) for demand in outcome.of("long")]
    calm: list[float] = []
    busy: list[float] = []
    for demand in outcome.of("short"):
        at_s = demand.first_token_s or 0.0
        if demand.tpot_s is not None:
            (busy if any(begin <= at_s <= end for begin, end in prefills) else calm).append(demand.tpot_s)
    return outcome, percentile(calm, 0.95), percentile(busy, 0.95)


def goodput(outcome: Outcome, targets: ServiceTargets) -> float:
    """The share of finished requests that were within both targets."""
    within = [targets.met_by(demand.ttft_s, demand.tpot_s or 0.0) for demand in outcome.demands]
    return sum(within) / len(within)


def ttft_p95(outcome: Outcome, tenant: str) -> float:
    return percentile([demand.ttft_s for demand in outcome.of(tenant)], 0.95)


def fairness(outcome: Outcome) -> float:
    """Jain's index of what tenants got: 1 when all got the same."""
    served = list(outcome.served_tokens.values())
    return sum(served) ** 2 / (len(served) * sum(x * x for x in served)) if served else 1.0


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def _header() -> None:
    print("| policy | tenant | requests | TTFT s P50 / P95 / P99 | TPOT ms | Jain | tokens/s | hits | used |")
    print("|---|---|---|---|---|---|---|---|---|")


def _row(policy: str, outcome: Outcome) -> None:
    for tenant in sorted({demand.tenant for demand in outcome.demands}):
        demands = outcome.of(tenant)
        print(
            f"| {policy} | {tenant} | {len(demands)} | {_three([d.ttft_s for d in demands], 1, '.2f')} "
            f"| {_three([d.tpot_s for d in demands if d.tpot_s is not None], 1e3, '.0f')} | {fairness(outcome):.2f} "
            f"| {outcome.tokens_per_s:.0f} | {outcome.hit_rate:.1%} | {outcome.utilization:.1%} |",
            flush=True,
        )


def _three(values: Sequence[float], factor: float, form: str) -> str:
    return " / ".join(format(percentile(values, share) * factor, form) for share in (0.5, 0.95, 0.99))


if __name__ == "__main__":
    main()
