"""Blocks of the KV cache against the plainest model there is: a dictionary of counts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.config import BLOCK_TOKENS
from octavo.errors import EngineError
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.block_table import BlockTable, blocks_for
from octavo.kvcache.prefix_tree import PrefixTree
from octavo.request import PrefixKey

NUM_BLOCKS = 13


class Blocks(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.counts = dict.fromkeys(range(NUM_BLOCKS), 0)
        self.kept: set[int] = set()

    @rule(count=st.integers(0, NUM_BLOCKS))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            with pytest.raises(EngineError):
                self.pool.allocate(count)
            return
        block_ids = self.pool.allocate(count)
        assert len(set(block_ids)) == count
        for block_id in block_ids:
            assert self.counts[block_id] == 0 and block_id not in self.kept
            self.counts[block_id] = 1

    @precondition(lambda self: any(self.counts.values()) or self.kept)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        used = [block for block, count in self.counts.items() if count or block in self.kept]
        block_id = data.draw(st.sampled_from(used))
        self.pool.acquire([block_id])
        self.counts[block_id] += 1

    @rule(block_id=st.integers(0, NUM_BLOCKS - 1))
    def release(self, block_id: int) -> None:
        if self.counts[block_id] == 0:
            with pytest.raises(EngineError):
                self.pool.release([block_id])
            if block_id not in self.kept:
                with pytest.raises(EngineError):
                    self.pool.acquire([block_id])
            return
        self.pool.release([block_id])
        self.counts[block_id] -= 1

    @rule(block_id=st.integers(0, NUM_BLOCKS - 1))
    def keep(self, block_id: int) -> None:
        if self.counts[block_id] == 0 or block_id in self.kept:
            with pytest.raises(EngineError):
                self.pool.keep(block_id)
            return
        self.pool.keep(block_id)
        self.kept.add(block_id)

    @rule(block_id=st.integers(0, NUM_BLOCKS - 1))
    def drop(self, block_id: int) -> None:
        if block_id not in self.kept:
            with pytest.raises(EngineError):
                self.pool.drop(block_id)
            return
        self.pool.drop(block_id)
        self.kept.remove(block_id)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check_integrity()
        assert {block: self.pool.references(block) for block in self.counts} == self.counts
        assert self.pool.num_used == sum(count > 0 for count in self.counts.values())
        assert self.pool.num_cached == sum(count == 0 and block in self.kept for block, count in self.counts.items())
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_used == NUM_BLOCKS


Blocks.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestBlocks = Blocks.TestCase


@pytest.mark.parametrize("num_tokens", [0, 1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 5 * BLOCK_TOKENS])
def test_a_table_grows_by_exactly_what_is_missing(num_tokens: int) -> None:
    pool = BlockPool(8)
    table = BlockTable(pool, PrefixTree().open(PrefixKey()))
    for known in range(num_tokens + 1):
        table.append(table.num_missing(known))
        assert table.num_missing(known) == 0
        assert len(table.block_ids) == blocks_for(known)
    table.release()
    assert pool.num_free == 8


def test_blocks_given_back_are_handed_out_again_in_the_same_order() -> None:
    pool = BlockPool(8)
    table = BlockTable(pool, PrefixTree().open(PrefixKey()))
    first = table.append(5)
    table.release()
    assert table.append(5) == first
