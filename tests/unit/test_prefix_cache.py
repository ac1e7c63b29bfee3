"""What requests share: how much of a prompt is found, what waits, what is copied, what goes first."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import BLOCK_TOKENS, EvictionPolicy
from octavo.kvcache.kv_cache import KvCache
from octavo.kvcache.prefix_tree import TOKEN_TYPE, PrefixTree, nearest
from octavo.request import PrefixKey
from octavo.scheduler.prefill import MAX_PASSED_OVER
from octavo.step import StepPlan
from tests.unit.test_scheduler import Harness, make_request


def tokens(*runs: tuple[int, int]) -> list[int]:
    """`(token, count)` runs, end to end."""
    return [token for token, count in runs for _ in range(count)]


def run(harness: Harness, request_id: str, prompt: list[int], max_tokens: int = 1, key: PrefixKey | None = None) -> int:
    """Runs a request to its end; returns how many tokens of its prompt were known."""
    harness.add(make_request(request_id, prompt, max_tokens, min_tokens=max_tokens, key=key))
    harness.step()
    (started,) = harness.scheduler.started
    harness.run_to_the_end()
    harness.check_outputs()
    return started.num_cached_tokens


def num_computed(plans: list[StepPlan]) -> int:
    return sum(plan.num_tokens for plan in plans)


@pytest.mark.parametrize(
    ("second", "num_cached"),
    [
        (tokens((5, 40)), 39),  # the same: only the last token is computed
        (tokens((5, 40), (6, 1)), 40),
        (tokens((5, 20), (6, 20)), 20),  # parts inside the second block
        (tokens((5, 32)), 31),
        (tokens((5, 33)), 32),
        (tokens((5, 1)), 0),
        (tokens((5, 2)), 1),
        (tokens((6, 40)), 0),
    ],
)
def test_prompts_match_token_by_token(second: list[int], num_cached: int) -> None:
    harness = Harness(20, 4, 64)
    assert run(harness, "first", tokens((5, 40))) == 0
    assert run(harness, "second", second) == num_cached
    copies = harness.executor.plans[-1].copies
    assert len(copies) == (num_cached % BLOCK_TOKENS > 0), "whole blocks are shared, only a partial one is copied"


def test_the_reply_is_part_of_the_next_turns_prefix() -> None:
    harness = Harness(40, 4, 64)
    prompt = tokens((5, 21))
    for turn in range(10):
        known = run(harness, str(turn), prompt, max_tokens=13)
        assert known == (0 if turn == 0 else len(prompt) - 4 - 1), "all but the new tokens and one never computed"
        prompt = prompt + harness.outputs[str(turn)] + [9 + turn] * 4


@pytest.mark.parametrize(
    "key", [PrefixKey(adapter="a"), PrefixKey(image_hash="i"), PrefixKey(cache_salt="s"), PrefixKey("a", "i", "s")]
)
def test_what_differs_in_its_key_is_never_shared(key: PrefixKey) -> None:
    harness = Harness(20, 4, 64)
    run(harness, "first", tokens((5, 40)))
    assert run(harness, "second", tokens((5, 40)), key=key) == 0
    assert run(harness, "third", tokens((5, 40)), key=key) == 39


def test_equal_prompts_in_one_batch_compute_their_prefix_once() -> None:
    harness = Harness(40, 8, 64)
    for index in range(8):
        harness.add(make_request(str(index), tokens((5, 150)), 3, min_tokens=3))
    harness.run_to_the_end()
    harness.check_outputs()
    assert num_computed(harness.executor.plans) == 150 + 7 * 1 + 8 * 2


@pytest.mark.parametrize("num_tokens", [20, 35, 70, 150])
def test_what_a_running_request_has_said_is_shared_whenever_somebody_comes(num_tokens: int) -> None:
    """Also if others, who came before, look for nothing of it; to the last full block that has been computed."""
    harness = Harness(100, 4, 512)
    harness.add(make_request("says", tokens((5, 9)), 200, min_tokens=200))
    for number in range(2):
        while len(harness.outputs["says"]) < num_tokens:
            harness.step()
        harness.add(make_request(f"other {number}", [7 + number], 1))
        said = [*tokens((5, 9)), *harness.outputs["says"]]
        harness.add(make_request(f"same {number}", [*said, 3], 1))
        harness.step()
        (started,) = [each for each in harness.scheduler.started if each.request_id == f"same {number}"]
        num_computed = len(said) - 1
        assert started.num_cached_tokens >= num_computed // BLOCK_TOKENS * BLOCK_TOKENS
        num_tokens += 17
    harness.run_to_the_end()
    harness.check_outputs()


def test_one_that_waits_for_a_prefix_lets_others_pass() -> None:
    harness = Harness(40, 4, 64)
    for request_id, prompt in (("first", tokens((5, 40))), ("same", tokens((5, 40))), ("other", tokens((6, 10)))):
        harness.add(make_request(request_id, prompt, 4, min_tokens=4))
    harness.step()
    assert [started.request_id for started in harness.scheduler.started] == ["first", "other"]
    harness.step()
    assert [started.request_id for started in harness.scheduler.started] == ["same"]


def test_only_so_many_are_passed_over() -> None:
    harness = Harness(100, 2, 64)
    for index in range(MAX_PASSED_OVER + 2):
        harness.add(make_request(str(index), tokens((5, 40)), 1))
    harness.add(make_request("other", [7], 1))
    harness.step()
    assert [started.request_id for started in harness.scheduler.started] == ["0"]


def test_an_abort_takes_back_what_was_promised() -> None:
    harness = Harness(40, 4, 16)
    harness.add(make_request("first", tokens((5, 100)), 4))
    harness.add(make_request("same", tokens((5, 100)), 4))
    harness.step()
    harness.end("first")
    harness.step()
    (started,) = harness.scheduler.started
    assert (started.request_id, started.num_cached_tokens) == ("same", 16)
    harness.run_to_the_end()
    harness.check_outputs()


def test_a_preempted_request_resumes_from_what_is_left_of_it() -> None:
    harness = Harness(10, 4, 64)
    for index in range(2):
        harness.add(make_request(str(index), tokens((5 + index, 60)), 30, min_tokens=30))
    harness.run_to_the_end()
    harness.check_outputs()
    resumed = [plan for plan in harness.executor.plans if plan.starts][-1]
    assert resumed.steps[-1].num_computed_tokens > 0


@pytest.mark.parametrize(("policy", "survivor"), [("lru", "new"), ("lfu", "old")])
def test_the_least_useful_prefix_goes_first(policy: EvictionPolicy, survivor: str) -> None:
    prompts = {"old": tokens((5, 40)), "new": tokens((6, 40))}
    harness = Harness(7, 4, 64, eviction_policy=policy)
    for index, name in enumerate(("old", "old", "old", "new")):
        run(harness, f"{name} {index}", prompts[name])
    run(harness, "big", tokens((7, 60)))
    matches = {}
    for name, prompt in prompts.items():
        table = harness.kv.open(PrefixKey())
        matches[name] = harness.kv.match(table, array(TOKEN_TYPE, prompt), 40).num_tokens
    assert max(matches, key=lambda name: matches[name]) == survivor and matches[survivor] >= 32


def test_a_prefix_is_evicted_from_its_end() -> None:
    harness = Harness(8, 4, 128)
    run(harness, "long", tokens((5, 100)))
    run(harness, "other", tokens((6, 60)))
    assert run(harness, "again", tokens((5, 100))) == 64


def test_what_a_waiting_request_will_hit_does_not_go_for_another_waiting_one() -> None:
    harness = Harness(12, 2, 128)
    run(harness, "wanted", tokens((5, 48)))
    run(harness, "later", tokens((6, 48)))
    harness.add(make_request("running", [9], 30, min_tokens=30))
    harness.add(make_request("waits for a row", tokens((7, 60)), 1))
    harness.add(make_request("hits", tokens((5, 48), (8, 1)), 1))
    while "hits" in harness.scheduler:
        harness.step()
        for started in harness.scheduler.started:
            assert started.request_id != "hits" or started.num_cached_tokens == 48


def test_a_fork_shares_full_blocks_and_copies_the_partial_one() -> None:
    kv = KvCache(10)
    token_ids = array(TOKEN_TYPE, tokens((5, 40)))
    table = kv.open(PrefixKey())
    assert kv.enter(table, token_ids, kv.match(table, token_ids, 39), num_tokens=40)
    kv.publish(table, token_ids, 40)
    twin = kv.fork(table, token_ids, 40)
    assert twin.block_ids[:2] == table.block_ids[:2] and twin.block_ids[2] != table.block_ids[2]
    (copy,) = kv.start_moves().copies
    assert (copy.source, copy.destination) == (table.block_ids[2], twin.block_ids[2])
    kv.check_integrity([table, twin])
    kv.finish_moves()
    for each in (table, twin):
        kv.leave(each, token_ids, 40)
        kv.close(each)
    kv.check_integrity([])
    assert kv.pool.num_used == 0 and kv.reset_prefixes() == kv.num_blocks - 7 and kv.pool.num_free == 10


def test_a_failed_step_makes_its_copies_in_the_next() -> None:
    harness = Harness(20, 4, 64)
    run(harness, "first", tokens((5, 40)))
    harness.add(make_request("second", tokens((5, 30), (6, 10)), 4))
    harness.executor.failures.append(RuntimeError("no"))
    plan = harness.scheduler.schedule()
    with pytest.raises(RuntimeError):
        harness.executor.execute(plan)
    harness.end("second")
    assert run(harness, "third", tokens((5, 30), (6, 10))) == 30, "what was to be copied has become known"


def test_a_copy_that_would_need_too_much_memory_is_not_made() -> None:
    harness = Harness(2, 1, 64)
    run(harness, "first", [2])
    assert run(harness, "second", tokens((2, 17))) == 0


def test_without_prefix_caching_nothing_is_known() -> None:
    harness = Harness(20, 4, 64, prefix_caching=False)
    run(harness, "first", tokens((5, 40)))
    assert run(harness, "second", tokens((5, 40))) == 0
    assert harness.pool.num_cached == 0


@given(
    children=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=12),
    query=st.lists(st.integers(0, 3), max_size=6),
)
def test_nearest_finds_the_longest_agreement(children: list[list[int]], query: list[int]) -> None:
    def common(a: list[int]) -> int:
        return next((n for n, (x, y) in enumerate(zip(a, query, strict=False)) if x != y), min(len(a), len(query)))

    root = PrefixTree().open(PrefixKey())
    tree = PrefixTree()
    for block_id, child in enumerate({tuple(child): None for child in children}):
        tree.add(root, array(TOKEN_TYPE, child).tobytes(), block_id)
    assert all(a < b for a, b in pairwise(root.sorted_tokens))
    node, count = nearest(root, array(TOKEN_TYPE, query).tobytes())
    assert count == max(map(common, children), default=0)
    assert (node is None) == (count == 0)
