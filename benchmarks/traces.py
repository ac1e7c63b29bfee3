"""Traffic for the simulated scheduler: who asks for what, when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from heapq import merge

from benchmarks.simulation import Demand

VOCAB_SIZE = 49_000


def chat(
    seed: int, *, num_requests: int, rate_per_s: float, tenant: str = "all", mu: float = 4.6, sigma: float = 0.8
) -> Iterator[Demand]:
    """Poisson arrivals; prompts and answers of lognormal length, 8 to 512 tokens, as in workload.py."""
    rng = random.Random(seed)
    arrival_s = 0.0
    for _ in range(num_requests):
        arrival_s += rng.expovariate(rate_per_s)
        yield Demand(arrival_s, tenant, _tokens(rng, _length(rng, mu, sigma)), _length(rng, mu, sigma))


def flood(
    seed: int, *, num_polite: int, polite_per_s: float, num_flooding: int, flood_per_s: float
) -> Iterator[Demand]:
    """Two tenants: one asks now and then, the other for several times what the machine can do."""
    polite = chat(seed, num_requests=num_polite, rate_per_s=polite_per_s, tenant="polite")
    flooding = chat(seed + 1, num_requests=num_flooding, rate_per_s=flood_per_s, tenant="flood")
    return merge(polite, flooding, key=lambda demand: demand.arrival_s)


def long_prompts(
    seed: int, *, num_short: int, short_per_s: float, num_long: int, every_s: float, long_tokens: int = 100_000
) -> Iterator[Demand]:
    """Short requests, and every now and then one with a prompt of 100,000 tokens."""
    short = chat(seed, num_requests=num_short, rate_per_s=short_per_s, tenant="short")
    rng = random.Random(seed + 1)
    long = (Demand((n + 1) * every_s, "long", _tokens(rng, long_tokens), 64) for n in range(num_long))
    return merge(short, long, key=lambda demand: demand.arrival_s)


def agents(
    seed: int,
    *,
    num_agents: int,
    num_turns: int,
    system_tokens: int = 1500,
    turn_tokens: int = 200,
    think_s: float = 2.0,
) -> Iterator[Demand]:
    """Agents with one system prompt; each asks again, with all that was said before, a while after its answer."""
    rng = random.Random(seed)
    system = _tokens(rng, system_tokens)

    def turn(agent: random.Random, arrival_s: float, said: tuple[int, ...], left: int) -> Demand:
        prompt = said + _tokens(agent, turn_tokens)

        def follow(answer: list[int], end_s: float) -> Demand | None:
            if left == 1:
                return None
            return turn(agent, end_s + agent.expovariate(1 / think_s), prompt + tuple(answer), left - 1)

        return Demand(arrival_s, "agents", prompt, _length(agent, 4.0, 0.6), follow)

    for number in range(num_agents):
        yield turn(random.Random(seed + 1 + number), number * 0.05, system, num_turns)


def _length(rng: random.Random, mu: float, sigma: float) -> int:
    return int(min(512, max(8, rng.lognormvariate(mu, sigma))))


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(100, VOCAB_SIZE), k=count))
