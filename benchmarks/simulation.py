"""The real scheduler and KV cache without a model: steps take the time that a machine of known law would need.

Time is simulated, so a run gives the same figures on any machine, and an hour of traffic takes a minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count

from benchmarks.planned_rows import PlannedRows
from octavo.config import BLOCK_TOKENS, SchedulingConfig
from octavo.errors import QueueFullError
from octavo.kvcache.kv_cache import KvCache
from octavo.request import Request, Tenant
from octavo.sampling_params import SamplingParams
from octavo.scheduler.scheduler import Scheduler
from octavo.step import RowStep, StepOutput


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of a step: about those of a 135M model on two AVX-512 cores, where 64 requests decode in 19 ms."""

    step_s: float = 3e-3
    token_s: float = 1.4e-4
    context_token_s: float = 2e-8
    request_s: float = 1e-4

    def seconds(self, steps: Sequence[RowStep]) -> float:
        tokens = context = 0
        for step in steps:
            tokens += step.num_tokens
            context += step.num_tokens * (step.num_computed_tokens + step.num_tokens / 2)
        return self.step_s + self.token_s * tokens + self.context_token_s * context + self.request_s * len(steps)


@dataclass(frozen=True, slots=True)
class Limits:
    """The size of the engine."""

    num_blocks: int = 8192
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512


@dataclass(slots=True)
class Demand:
    """A request of a trace: when it comes, what it is, and what may follow its answer.

    `follow` is called with the answer's token ids and the time it ended, and may give the next request.
    """

    arrival_s: float
    tenant: str
    prompt: tuple[int, ...]
    num_output_tokens: int
    follow: Callable[[list[int], float], Demand | None] | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    output: list[int] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        assert self.first_token_s is not None
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time between tokens; None of an answer of one token."""
        assert self.first_token_s is not None and self.end_s is not None
        return (self.end_s - self.first_token_s) / (len(self.output) - 1) if len(self.output) > 1 else None


@dataclass(slots=True)
class Outcome:
    """What came of a trace. Utilisation is the tokens held of the slots allocated, averaged over steps."""

    demands: list[Demand] = field(default_factory=list)
    seconds: float = 0.0
    num_steps: int = 0
    num_preempted: int = 0
    num_refused: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    utilization: float = 0.0
    served_tokens: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens, cached ones included."""
        return (self.num_prompt_tokens + self.num_output_tokens) / self.seconds

    @property
    def hit_rate(self) -> float:
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    def of(self, tenant: str) -> list[Demand]:
        return [demand for demand in self.demands if demand.tenant == tenant]


class Simulation:
    """Runs a trace to its end, or until `until_s`; demands of the trace come in order of arrival."""

    def __init__(
        self,
        demands: Iterable[Demand],
        config: SchedulingConfig,
        *,
        limits: Limits = Limits(),
        machine: Machine = Machine(),
        until_s: float = float("inf"),
    ) -> None:
        self.now = 0.0
        self.kv = KvCache(limits.num_blocks)
        self.scheduler = Scheduler(
            self.kv,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            config=config,
            clock=lambda: self.now,
        )
        self.outcome = Outcome()
        self._machine = machine
        self._rows = PlannedRows()
        self._until_s = until_s
        self._trace: Iterator[Demand] = iter(demands)
        self._next = next(self._trace, None)
        self._later: list[tuple[float, int, Demand]] = []
        self._ticket = count()
        self._demands: dict[str, Demand] = {}

    def run(self) -> Outcome:
        while self.now < self._until_s:
            self._admit()
            if self.scheduler.has_requests:
                self._step()
            elif (arrival_s := self._next_arrival_s()) is not None:
                self.now = max(self.now, arrival_s)
            else:
                break
        self.outcome.seconds = self.now
        self.outcome.utilization /= max(1, self.outcome.num_steps)
        return self.outcome

    def _next_arrival_s(self) -> float | None:
        times = [demand.arrival_s for demand in (self._next,) if demand is not None]
        times += [self._later[0][0]] if self._later else []
        return min(times, default=None)

    def _admit(self) -> None:
        while self._next is not None and self._next.arrival_s <= self.now:
            self._add(self._next)
            self._next = next(self._trace, None)
        while self._later and self._later[0][0] <= self.now:
            self._add(heappop(self._later)[2])

    def _add(self, demand: Demand) -> None:
        request_id = str(next(self._ticket))
        sampling = _sampling(demand.num_output_tokens)
        request = Request(
            request_id, demand.prompt, sampling, frozenset(), demand.arrival_s, tenant=Tenant(demand.tenant)
        )
        try:
            self.scheduler.add(request)
        except QueueFullError:
            self.outcome.num_refused += 1
            return
        self._demands[request_id] = demand

    def _step(self) -> None:
        scheduler, outcome = self.scheduler, self.outcome
        steps = self._rows.steps(scheduler.schedule())
        self.now += self._machine.seconds(steps)
        self._count(steps)
        sampled = [7 + (step.row * 31 + step.num_computed_tokens) % 997 for step in steps if step.samples]
        for start in scheduler.started:
            outcome.num_prompt_tokens += start.num_prompt_tokens
            outcome.num_cached_tokens += start.num_cached_tokens
        for token in scheduler.update(StepOutput(sampled)):
            self._take(token.request_id, token.token_id)

    def _count(self, steps: Sequence[RowStep]) -> None:
        """Utilisation of the blocks that are held: all full but the last of each request."""
        self.outcome.num_steps += 1
        self.outcome.num_preempted += self.scheduler.step_counts.num_preempted
        num_slots = num_tokens = 0
        for step in steps:
            end = step.num_computed_tokens + step.num_tokens
            num_tokens += end
            num_slots += -(-end // BLOCK_TOKENS) * BLOCK_TOKENS
        self.outcome.utilization += num_tokens / num_slots if num_slots else 1.0

    def _take(self, request_id: str, token_id: int) -> None:
        demand, outcome = self._demands[request_id], self.outcome
        if demand.first_token_s is None:
            demand.first_token_s = self.now
            outcome.served_tokens[demand.tenant] += len(demand.prompt)
        demand.end_s = self.now
        demand.output.append(token_id)
        outcome.num_output_tokens += 1
        outcome.served_tokens[demand.tenant] += 1
        if len(demand.output) == demand.num_output_tokens:
            self._finish(request_id, demand)

    def _finish(self, request_id: str, demand: Demand) -> None:
        self.scheduler.remove(request_id)
        del self._demands[request_id]
        self.outcome.demands.append(demand)
        following = demand.follow(demand.output, self.now) if demand.follow is not None else None
        if following is not None:
            heappush(self._later, (following.arrival_s, next(self._ticket), following))


@lru_cache(maxsize=1024)
def _sampling(num_output_tokens: int) -> SamplingParams:
    """Requests of one length share their sampling parameters: a trace has many."""
    return SamplingParams(temperature=0.0, max_tokens=num_output_tokens, seed=0, ignore_eos=True)
