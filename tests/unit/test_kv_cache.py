"""Ten thousand random schedules of the KV cache against a model that stores every request's tokens separately.

Memory is a dictionary of slots, each holding a number that depends on a token and on all before it (and on the prefix
key). Whoever computes must see, in every slot its window reaches, the numbers of its own tokens.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

import pytest

from octavo.config import BLOCK_TOKENS
from octavo.kvcache.block_moves import BlockMoves
from octavo.kvcache.block_store import Parts
from octavo.kvcache.block_table import BlockTable, blocks_for
from octavo.kvcache.kv_cache import KvCache
from octavo.kvcache.prefix_tree import TOKEN_TYPE, PrefixNode
from octavo.kvcache.window_group import WindowGroup
from octavo.request import PrefixKey
from tests.engine.fakes import extend

KEYS = (PrefixKey(), PrefixKey(cache_salt="s"))
NUM_STEPS = 16
MAX_TOKENS = 90
NUM_SCHEDULES = 10_000
Slot = tuple[int, int, int]  # group, block, place in the block


class MemoryStore:
    """A block store without files."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, Parts] = {}
        self.max_blocks = 1000

    def __contains__(self, digest: bytes) -> bool:
        return digest in self.blocks

    def put(self, digest: bytes, parts: Parts) -> None:
        self.blocks.setdefault(digest, parts)

    def get(self, digest: bytes) -> Parts | None:
        return self.blocks.get(digest)

    def clear(self) -> None:
        self.blocks.clear()


class Sequence:
    """One request of the model: its tokens, and how many of them are computed."""

    def __init__(self, key: PrefixKey, token_ids: list[int], table: BlockTable) -> None:
        self.key = key
        self.token_ids = array(TOKEN_TYPE, token_ids)
        self.table = table
        self.num_computed = 0


class Schedule:
    """Random arrivals, steps, forks, preemptions, aborts, failures and resets, all decided by one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.chunk = rng.randint(1, rng.choice((8, 40)))
        num_blocks = rng.randint(6, 14)
        self.windows: list[int | None] = [None, *rng.choices([None, 1, 10, 16, 33, 33], k=rng.choice([0, 0, 1, 2]))]
        groups = [WindowGroup(self._group_blocks(window, num_blocks), window) for window in self.windows[1:]]
        self.kv = KvCache(
            num_blocks,
            groups,
            prefix_caching=rng.random() < 0.9,
            eviction_policy=rng.choice(("lru", "lfu")),
            store=MemoryStore() if rng.random() < 0.3 else None,  # type: ignore[arg-type]
        )
        self.groups = groups
        self.slots: dict[Slot, int] = {}
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    def _group_blocks(self, window: int | None, num_blocks: int) -> int:
        """Enough for one request, or a few more."""
        least = num_blocks if window is None else blocks_for(window) + 1 + blocks_for(self.chunk)
        return min(num_blocks, least + self.rng.randint(0, 2))

    def run(self) -> None:
        for _ in range(NUM_STEPS):
            self.rng.choice((self.arrive, self.arrive, self.fork, self.preempt, self.abort, self.reset, _nothing))()
            self.step()
            self.check()
        for sequence in (*self.running, *self.waiting):
            self.end(sequence)
        self.kv.finish_moves(self.execute(self.kv.start_moves()))
        self.check()
        assert self.kv.pool.num_used == 0 and all(group.pool.num_used == 0 for group in self.groups)
        self.kv.reset_prefixes()
        assert self.kv.pool.num_free == self.kv.num_blocks
        assert all(group.pool.num_free == group.pool.num_blocks for group in self.groups)

    # ---- what may happen between steps

    def arrive(self) -> None:
        """Prompts come from few beginnings, so that they share much and part anywhere."""
        stem = self.rng.choice(([1, 2] * 30, [1, 2] * 12 + [3] * 20, [4] * 33))
        prompt = stem[: self.rng.randint(1, len(stem))] + self.rng.choices((1, 2, 3), k=self.rng.randint(0, 6))
        key = KEYS[self.rng.random() < 0.2]
        self.waiting.append(Sequence(key, prompt, self.kv.open(key)))

    def fork(self) -> None:
        if self.running and len(self.running) < 6 and self.kv.make_room(1):
            parent = self.rng.choice(self.running)
            table = self.kv.fork(parent.table, parent.token_ids, parent.num_computed)
            twin = Sequence(parent.key, parent.token_ids.tolist(), table)
            twin.num_computed = parent.num_computed
            if twin.num_computed == len(twin.token_ids):
                twin.token_ids.append(self.rng.choice((1, 2, 3)))
            self.running.append(twin)

    def preempt(self) -> None:
        if self.running:
            self.displace(self.rng.choice(self.running))

    def displace(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.kv.leave(sequence.table, sequence.token_ids, sequence.num_computed)
        sequence.num_computed = 0
        self.waiting.insert(0, sequence)

    def abort(self) -> None:
        if self.running or self.waiting:
            self.end(self.rng.choice((*self.running, *self.waiting)))

    def end(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.displace(sequence)
        self.waiting.remove(sequence)
        self.kv.close(sequence.table)

    def reset(self) -> None:
        if self.rng.random() < 0.3:
            self.kv.reset_prefixes()

    # ---- a step

    def step(self) -> None:
        chunks = {sequence: self._grow(sequence) for sequence in list(self.running) if sequence in self.running}
        chunks |= {sequence: count for sequence, count in self._enter() if count}
        chunks = {sequence: count for sequence, count in chunks.items() if sequence in self.running and count}
        moves = self.kv.start_moves()
        if self.rng.random() < 0.05:  # the step fails, and its requests with it
            for sequence in chunks:
                self.end(sequence)
            return
        saved = self.execute(moves)
        for sequence, count in chunks.items():
            self.compute(sequence, count)
        self.kv.finish_moves(saved)
        for sequence, count in chunks.items():
            self.advance(sequence, count)

    def _grow(self, sequence: Sequence) -> int:
        """How many tokens a running request computes; its blocks are there, whoever had to go for them."""
        count = min(self.rng.randint(1, self.chunk), len(sequence.token_ids) - sequence.num_computed)
        num_blocks = sequence.table.num_missing(sequence.num_computed + count)
        while not self.kv.make_room(num_blocks):
            victim = self.running[-1]
            self.displace(victim)
            if victim is sequence:
                return 0
        sequence.table.append(num_blocks)
        return count

    def _enter(self) -> Iterator[tuple[Sequence, int]]:
        for sequence in list(self.waiting):
            most = len(sequence.token_ids) - 1
            match = self.kv.match(sequence.table, sequence.token_ids, most, may_load=True)
            if match.is_pending or len(self.running) == 6:
                continue
            if self.rng.random() < 0.2:
                match = match.whole_blocks()
            count = min(self.chunk, len(sequence.token_ids) - match.num_tokens)
            total = match.num_tokens + count
            spare_wanted = bool(self.running)
            if self.kv.enter(sequence.table, sequence.token_ids, match, num_tokens=total, spare_wanted=spare_wanted):
                sequence.num_computed = match.num_tokens
                self.waiting.remove(sequence)
                self.running.append(sequence)
                yield sequence, count

    def execute(self, moves: BlockMoves) -> tuple[bytes, ...]:
        places = range(BLOCK_TOKENS)
        saved = tuple(
            array("q", [self.slots.get((a.group, a.block_id, place), -1) for place in places]).tobytes()
            for a in moves.saves
        )
        for load in moves.loads:
            for place, value in enumerate(array("q", load.pages)):
                self.slots[load.address.group, load.address.block_id, place] = value
        for copy in moves.copies:
            for place in places:
                self.slots[copy.group, copy.destination, place] = self.slots.get((copy.group, copy.source, place), -1)
        return saved

    def compute(self, sequence: Sequence, count: int) -> None:
        """Reads what the first of `count` tokens sees, and writes them all."""
        first, state = sequence.num_computed, KEYS.index(sequence.key)
        tables = sequence.table.block_ids_by_group
        for position in range(first + count):
            state = extend(state, sequence.token_ids[position])
            index, place = divmod(position, BLOCK_TOKENS)
            for group, (table, window) in enumerate(zip(tables, self.windows, strict=True)):
                if position >= first:
                    self.slots[group, table[index], place] = state
                elif window is None or position > first - window:
                    assert self.slots.get((group, table[index], place)) == state, "a slot holds another's token"

    def advance(self, sequence: Sequence, count: int) -> None:
        sequence.num_computed += count
        if sequence.num_computed >= sequence.table.publish_at:
            self.kv.publish(sequence.table, sequence.token_ids, sequence.num_computed)
        if sequence.num_computed == len(sequence.token_ids):
            if self.rng.random() < 0.3:
                self.kv.publish_tail(sequence.table, sequence.token_ids, sequence.num_computed)
            if len(sequence.token_ids) == MAX_TOKENS:
                self.end(sequence)
            else:
                sequence.token_ids.append(self.rng.choice((1, 2, 2)))

    # ---- what must hold

    def check(self) -> None:
        self.kv.check_integrity(sequence.table for sequence in self.running)
        awaited = {(copy.group, copy.destination) for copy in self.kv.copies.awaited}
        for root in self.kv._prefixes._tree._roots.values():
            self._check_tokens(root, KEYS.index(root.key), awaited)

    def _check_tokens(self, node: PrefixNode, state: int, awaited: set[tuple[int, int]]) -> None:
        """Every block holds the tokens of the path to its node."""
        block_ids = self.kv._prefixes.blocks_of(node)
        for place, token_id in enumerate(array(TOKEN_TYPE, node.tokens)):
            state = extend(state, token_id)
            for group, block_id in enumerate(block_ids):
                if block_id is not None and not self._is_awaited(block_id):
                    assert self.slots.get((group, block_id, place)) == state, "a known block holds other tokens"
        for child in node.children.values():
            self._check_tokens(child, state, awaited)

    def _is_awaited(self, block_id: int) -> bool:
        return self.kv._moves.is_awaited(block_id)


def _nothing() -> None:
    """A step follows a step."""


@pytest.mark.parametrize("part", range(4))
def test_everybody_sees_their_own_tokens_and_nothing_leaks(part: int) -> None:
    for seed in range(part, NUM_SCHEDULES, 4):
        try:
            Schedule(seed).run()
        except Exception as error:
            raise AssertionError(f"schedule {seed}: {error!r}") from error
