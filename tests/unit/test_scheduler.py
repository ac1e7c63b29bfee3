"""The scheduler, driven with a backend that checks every slot it is told to read (tests/engine/fakes.py)."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.config import BLOCK_TOKENS, EvictionPolicy, PrefillLimits, SchedulingConfig, ServiceTargets
from octavo.errors import ContextLengthError, EngineError, InvalidValueError
from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.block_table import blocks_for
from octavo.kvcache.kv_cache import KvCache
from octavo.kvcache.window_group import WindowGroup
from octavo.request import PrefixKey, Request, Tenant
from octavo.sampling_params import SamplingParams
from octavo.scheduler.policies.registry import POLICIES
from octavo.scheduler.request_state import RequestState
from octavo.scheduler.scheduler import DEFAULT_SCHEDULING, Scheduler
from octavo.step import StepOutput, StepPlan
from tests.engine.fakes import EOS, VOCAB_SIZE, FakeExecutor, continuation


def make_request(
    request_id: str,
    prompt: list[int],
    max_tokens: int,
    min_tokens: int = 0,
    seed: int = 0,
    key: PrefixKey | None = None,
) -> Request:
    sampling = SamplingParams(
        temperature=float(seed % 2), seed=seed, max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens)
    )
    return Request(request_id, tuple(prompt), sampling, frozenset({EOS}), 0.0, prefix_key=key or PrefixKey())


class Harness:
    """Scheduler and fake backend, with an engine reduced to: a request ends at EOS or at `max_tokens`."""

    def __init__(
        self,
        num_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        *,
        prefix_caching: bool = True,
        eviction_policy: EvictionPolicy = "lru",
        window_groups: Sequence[tuple[int, int | None]] = (),
        config: SchedulingConfig = DEFAULT_SCHEDULING,
        store: BlockStore | None = None,
    ) -> None:
        groups = [WindowGroup(count, window) for count, window in window_groups]
        self.kv = KvCache(
            num_blocks, groups, prefix_caching=prefix_caching, eviction_policy=eviction_policy, store=store
        )
        self.groups = groups
        self.pool = self.kv.pool
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        self.now = 0.0
        self.scheduler = Scheduler(self.kv, **limits, config=config, clock=lambda: self.now)
        self.executor = FakeExecutor(num_blocks, **limits, window_groups=window_groups)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ended: set[str] = set()
        self.preempted: dict[str, tuple[int, int]] = {}
        self.num_jumped = 0  # tokens that follow each third output token without being sampled

    @property
    def capacity(self) -> int:
        return self.pool.num_blocks * BLOCK_TOKENS

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []

    def step(self) -> None:
        plan = self.schedule()
        for token in self.scheduler.update(self.executor.execute(plan)):
            output = self.outputs[token.request_id]
            output.append(token.token_id)
            if self.num_jumped and len(output) % 3 == 0 and not self.has_ended(token.request_id):
                self.jump(token.request_id)
            if self.has_ended(token.request_id):
                self.end(token.request_id)

    def schedule(self) -> StepPlan:
        """A plan in which who decodes is; whoever was preempted again must have got a token since the last time."""
        self.now += 0.03
        plan = self.scheduler.schedule()
        decoding = {state.row for state in self.scheduler._running.decoding.values()}
        assert decoding <= {*plan.decoding, *[step.row for step in plan.steps]}, (
            "a request that decodes was left out of the step"
        )
        for state in self.scheduler._states.values():
            count, num_tokens = self.preempted.get(state.request_id, (0, 0))
            if state.num_preemptions > count:
                assert state.num_preemptions == count + 1
                progress = len(state.token_ids) - num_tokens
                assert count == 0 or progress > 0 or self.groups, "preempted again without any progress"
                self.preempted[state.request_id] = (count + 1, len(state.token_ids))
        return plan

    def jump(self, request_id: str) -> None:
        """Gives a request the tokens it would have sampled."""
        request, output = self.requests[request_id], self.outputs[request_id]
        known = len(output)
        for token_id in continuation(request.prompt_token_ids, request.sampling, known + self.num_jumped, [EOS])[
            known:
        ]:
            output.append(token_id)
            if self.has_ended(request_id):
                break
        self.scheduler.extend(request_id, output[known:])

    def has_ended(self, request_id: str) -> bool:
        output, sampling = self.outputs[request_id], self.requests[request_id].sampling
        assert sampling.max_tokens is not None
        return len(output) == sampling.max_tokens or (len(output) > sampling.min_tokens and output[-1] == EOS)

    def end(self, request_id: str) -> None:
        assert request_id not in self.ended
        self.ended.add(request_id)
        assert self.scheduler.remove(request_id)
        assert not self.scheduler.remove(request_id)

    def run_to_the_end(self) -> None:
        # Each step computes a token, and whoever is preempted has got one since the last time.
        most_tokens = [len(r.prompt_token_ids) + (r.sampling.max_tokens or 0) for r in self.requests.values()]
        limit = 10 * sum(most_tokens) + 1
        while self.scheduler.has_requests:
            assert limit > 0, "requests starve"
            limit -= 1
            self.step()
            self.scheduler.check_integrity()

    def check_outputs(self) -> None:
        """Every request got the tokens it would have got alone, as far as it came."""
        for request_id, request in self.requests.items():
            output = self.outputs[request_id]
            expected = continuation(request.prompt_token_ids, request.sampling, len(output), [EOS])
            assert output == expected


@pytest.mark.parametrize("num_jumped", [1, 5, 40])
@pytest.mark.parametrize("num_blocks", [8, 100])
def test_tokens_that_need_no_sampling_change_no_others(num_jumped: int, num_blocks: int) -> None:
    """With few blocks also through preemptions, with many of them through steps whose budget they exceed."""
    harness = Harness(num_blocks, max_num_seqs=4, max_num_batched_tokens=20)
    harness.num_jumped = num_jumped
    for index in range(7):
        harness.add(make_request(str(index), list(range(2, 6 + index)), max_tokens=90, min_tokens=60, seed=index))
    harness.run_to_the_end()
    harness.check_outputs()
    assert harness.ended == set(harness.requests)


# Prompts that share long beginnings, end inside blocks, or are one another's beginning.
STEMS = ([2, 3] * 20, [2, 3] * 20 + [4] * 7, [5] * 16, [6])
PROMPTS = st.builds(
    lambda stem, length, end: (stem[:length] + end) or [9],
    st.sampled_from(STEMS),
    st.integers(0, 60),
    st.lists(st.integers(2, VOCAB_SIZE - 1), max_size=60),
)


TENANTS = st.builds(Tenant, st.sampled_from(["a", "b"]), st.sampled_from(["", "u", "v"]))
CONFIGS = st.builds(
    SchedulingConfig,
    policy=st.sampled_from(sorted(POLICIES)),
    prefill=st.builds(
        PrefillLimits,
        long_tokens=st.none() | st.integers(1, 40),
        max_partial=st.none() | st.integers(1, 3),
        max_long_partial=st.integers(1, 2),
    ),
    targets=st.builds(ServiceTargets, ttft_s=st.none() | st.just(0.2), tpot_s=st.none() | st.just(0.02)),
)


class Schedules(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(2, 12),
        max_num_seqs=st.integers(1, 6),
        max_num_batched_tokens=st.integers(1, 40),
        prefix_caching=st.sampled_from([True, True, True, False]),
        eviction_policy=st.sampled_from(["lru", "lfu"]),
        windows=st.lists(st.none() | st.integers(1, 70), max_size=2),
        num_more_blocks=st.integers(0, 8),
        config=CONFIGS,
    )
    def start(
        self,
        num_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_caching: bool,
        eviction_policy: EvictionPolicy,
        windows: list[int | None],
        num_more_blocks: int,
        config: SchedulingConfig,
    ) -> None:
        def least(window: int | None) -> int:
            """What one request needs."""
            return num_blocks if window is None else blocks_for(window) + 1 + blocks_for(max_num_batched_tokens)

        self.harness = Harness(
            num_blocks,
            max_num_seqs,
            max_num_batched_tokens,
            prefix_caching=prefix_caching,
            eviction_policy=eviction_policy,
            window_groups=[(min(num_blocks, least(window) + num_more_blocks), window) for window in windows],
            config=config,
        )
        self.arrivals = 0

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 60),
        min_tokens=st.integers(0, 10),
        seed=st.integers(0, 2**64 - 1),
        tenant=TENANTS,
        priority=st.integers(-2, 2),
    )
    def arrive(
        self, prompt: list[int], max_tokens: int, min_tokens: int, seed: int, tenant: Tenant, priority: int
    ) -> None:
        request = make_request(str(self.arrivals), prompt, max_tokens, min_tokens, seed)
        request = replace(request, tenant=tenant, priority=priority, arrival_time=self.harness.now)
        self.arrivals += 1
        if len(prompt) + max_tokens > self.harness.capacity:
            with pytest.raises(ContextLengthError):
                self.harness.add(request)
        else:
            self.harness.add(request)

    @precondition(lambda self: self.harness.scheduler.has_requests)
    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.harness.scheduler.has_requests:
                self.harness.step()
                self.harness.scheduler.check_integrity()

    @precondition(lambda self: self.harness.scheduler.has_requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        present = [request_id for request_id in self.harness.requests if request_id in self.harness.scheduler]
        self.harness.end(data.draw(st.sampled_from(present)))

    @precondition(lambda self: self.harness.scheduler.has_requests)
    @rule(data=st.data())
    def abort_while_a_step_is_under_way(self, data: st.DataObject) -> None:
        harness = self.harness
        output = harness.executor.execute(harness.schedule())
        present = [request_id for request_id in harness.requests if request_id in harness.scheduler]
        aborted = data.draw(st.sampled_from(present))
        harness.end(aborted)
        for token in harness.scheduler.update(output):
            assert token.request_id != aborted
            harness.outputs[token.request_id].append(token.token_id)
            if harness.has_ended(token.request_id):
                harness.end(token.request_id)

    @rule()
    def reset(self) -> None:
        self.harness.kv.reset_prefixes()

    @invariant()
    def rows_and_blocks_are_held_once(self) -> None:
        self.harness.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.run_to_the_end()
        self.harness.check_outputs()
        assert self.harness.ended == set(self.harness.requests)
        assert self.harness.pool.num_used == 0
        assert all(group.pool.num_used == 0 for group in self.harness.groups)


Schedules.TestCase.settings = settings(max_examples=250, stateful_step_count=30, deadline=None)
TestSchedules = Schedules.TestCase


@settings(max_examples=100, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 90), min_size=1, max_size=12),
    max_tokens=st.integers(1, 40),
    max_num_batched_tokens=st.integers(1, 64),
)
def test_a_tiny_cache_preempts_and_still_everyone_ends(
    prompts: list[int], max_tokens: int, max_num_batched_tokens: int
) -> None:
    harness = Harness(9, 8, max_num_batched_tokens)
    for index, length in enumerate(prompts):
        harness.add(make_request(str(index), [2 + (index * 7 + i) % 90 for i in range(length)], max_tokens, seed=index))
    harness.run_to_the_end()
    harness.check_outputs()
    assert harness.pool.num_used == 0


def running_ids(harness: Harness) -> set[str]:
    return {state.request_id for state in harness.scheduler._running}


def run_until_preempted(harness: Harness) -> str:
    """Steps until a request is preempted; returns its id."""
    for _ in range(1000):
        running = running_ids(harness)
        harness.step()
        if harness.scheduler.step_counts.num_preempted:
            return next(iter(running - running_ids(harness) - harness.ended))
    raise AssertionError("nothing was preempted")


def test_whoever_loses_least_is_preempted_and_goes_on_where_it_was() -> None:
    harness = Harness(10, 4, 128)
    for index, length in enumerate((33, 17, 33)):
        harness.add(make_request(str(index), [5 + index] * length, 60, min_tokens=60))
    victim = run_until_preempted(harness)
    assert victim == "1", "the others have more to compute again"
    known = list(harness.requests[victim].prompt_token_ids) + harness.outputs[victim]
    while victim not in running_ids(harness):
        harness.step()
    assert list(harness.executor.plans[-1].starts[0].token_ids) == known
    harness.run_to_the_end()
    harness.check_outputs()


def test_the_less_urgent_is_preempted_whatever_it_loses() -> None:
    harness = Harness(10, 4, 128, config=SchedulingConfig(policy="priority"))
    for index, (length, priority) in enumerate(((33, 1), (17, 0), (33, 0))):
        request = make_request(str(index), [5 + index] * length, 60, min_tokens=60)
        harness.add(replace(request, priority=priority))
    assert run_until_preempted(harness) == "0"
    harness.run_to_the_end()
    harness.check_outputs()


def test_decoding_goes_on_while_a_long_prompt_is_computed_in_chunks() -> None:
    harness = Harness(100, 4, 16)
    harness.add(make_request("short", [3], 60, min_tokens=60))
    harness.step()
    harness.add(make_request("long", [4] * 300, 5))
    for _ in range(10):
        harness.step()
        plan = harness.executor.plans[-1]
        assert len(plan.decoding) == 1 and [step.num_tokens for step in plan.steps] == [15]
    assert len(harness.outputs["short"]) == 11


def test_a_waiting_request_enters_in_the_step_after_one_ends() -> None:
    harness = Harness(100, 1, 64)
    harness.add(make_request("first", [3] * 5, 1))
    harness.add(make_request("second", [4] * 5, 1))
    harness.step()
    assert harness.ended == {"first"} and harness.pool.num_used == 0
    harness.step()
    assert harness.ended == {"first", "second"}
    assert [plan.starts[0].row for plan in harness.executor.plans] == [0, 0]


def test_the_same_arrivals_give_the_same_plans() -> None:
    def plans() -> list[object]:
        harness = Harness(10, 4, 24)
        for index in range(9):
            harness.add(make_request(str(index), [2 + index] * (1 + 11 * index % 70), 30, seed=index))
        harness.run_to_the_end()
        return list(harness.executor.plans)

    assert plans() == plans()


def test_min_tokens_travels_with_the_row_also_after_a_preemption() -> None:
    harness = Harness(4, 4, 64)
    for index in range(3):
        harness.add(make_request(str(index), [5 + index] * 10, 50, min_tokens=40))
    victim = run_until_preempted(harness)
    while victim not in running_ids(harness):
        harness.step()
    start = harness.executor.plans[-1].starts[0]
    assert len(start.token_ids) > 10 and start.min_total_tokens == 50 and start.forbidden_token_ids == (EOS,)


def test_refusals_at_the_door() -> None:
    harness = Harness(4, 4, 64)
    with pytest.raises(ContextLengthError, match=r"65 tokens.*64"):
        harness.add(make_request("long", [3] * 60, 5))
    harness.add(make_request("twice", [3] * 60, 4))
    with pytest.raises(InvalidValueError, match="'twice' is in use"):
        harness.add(make_request("twice", [3], 1))


def test_an_output_that_does_not_answer_the_plan_is_an_error() -> None:
    harness = Harness(4, 4, 64)
    harness.add(make_request("a", [3] * 5, 4))
    harness.scheduler.schedule()
    with pytest.raises(EngineError, match="2 tokens instead of 1"):
        harness.scheduler.update(StepOutput((5, 6)))


def test_a_plan_that_only_decodes_holds_until_a_block_is_needed_or_somebody_comes_or_goes() -> None:
    harness = Harness(100, 4, 64)
    for index, length in enumerate((3, 9)):
        harness.add(make_request(str(index), [5 + index] * length, 60, min_tokens=60))
    for _ in range(40):
        harness.step()
    plans = harness.executor.plans[1:]
    assert all(len(plan.decoding) == 2 and not plan.steps for plan in plans)
    changed = [before is not plan for before, plan in pairwise(plans)]
    needs_block = [bool(plan.new_blocks) for plan in plans]
    assert changed == [any(pair) for pair in pairwise(needs_block)]
    assert [len(plan.new_blocks) for plan in plans if plan.new_blocks] == [2, 2]  # both, when one has filled its last
    harness.add(make_request("new", [7] * 5, 60, min_tokens=60))
    harness.step()
    assert len(harness.executor.plans[-1].steps) == 1
    harness.step()
    assert len(harness.executor.plans[-1].decoding) == 3
    harness.end("0")
    harness.run_to_the_end()
    harness.check_outputs()


def test_blocks_are_taken_ahead_only_where_memory_is_ample_and_tokens_will_come() -> None:
    def blocks_at_a_time(num_blocks: int, max_tokens: int) -> list[int]:
        harness = Harness(num_blocks, 4, 64)
        for index, length in enumerate((3, 9)):
            harness.add(make_request(str(index), [5 + index] * length, max_tokens, min_tokens=max_tokens))
        harness.run_to_the_end()
        harness.check_outputs()
        return [len(plan.new_blocks) for plan in harness.executor.plans if plan.new_blocks]

    assert blocks_at_a_time(num_blocks=12, max_tokens=40) == [2, 2]
    assert blocks_at_a_time(num_blocks=6, max_tokens=40) == [1, 1, 1, 1]
    assert blocks_at_a_time(num_blocks=100, max_tokens=13) == [1]  # the first ends with its block


def test_tokens_put_aside_are_known_when_a_request_goes_comes_or_is_extended() -> None:
    """In the middle of steps that are all alike."""
    harness = Harness(100, 4, 64)
    for index in range(3):
        harness.add(make_request(str(index), [5 + index] * 4, 60, min_tokens=60))
    for _ in range(6):
        harness.step()
    harness.end("0")
    for _ in range(3):
        harness.step()
    said = [5] * 4 + harness.outputs["0"][:-1]
    harness.add(make_request("like 0", said, 20, min_tokens=20))
    for _ in range(3):
        harness.step()
    harness.num_jumped = 5
    harness.jump("1")
    harness.num_jumped = 0
    harness.run_to_the_end()
    harness.check_outputs()


def test_an_idle_scheduler_makes_an_empty_plan() -> None:
    plan = Harness(4, 4, 64).scheduler.schedule()
    assert plan.num_tokens == 0 and plan.starts == ()


@pytest.mark.parametrize("targets", [ServiceTargets(), ServiceTargets(ttft_s=1e9)])
def test_who_is_gone_is_forgotten_however_long_it_might_have_waited(targets: ServiceTargets) -> None:
    harness = Harness(64, 4, 64, config=SchedulingConfig(targets=targets))
    for number in range(500):
        harness.scheduler.add(replace(make_request(str(number), [1, 2], 1), queue_timeout_s=1e9))
        harness.scheduler.remove(str(number))
    gc.collect()
    assert sum(isinstance(each, RequestState) for each in gc.get_objects()) < 200
