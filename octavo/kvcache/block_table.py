"""The blocks one request holds, in the order of its tokens."""

from __future__ import annotations

import sys

from octavo.config import BLOCK_TOKENS
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.prefix_tree import PrefixNode, PrefixRoot

NEVER = sys.maxsize


def blocks_for(num_tokens: int) -> int:
    """The number of blocks that `num_tokens` tokens occupy."""
    return -(-num_tokens // BLOCK_TOKENS)


class BlockTable:
    """Token position p of the request lies in slot p % BLOCK_TOKENS of block `block_ids[p // BLOCK_TOKENS]`.

    Beside the blocks it remembers the request's place in the prefix tree, for `KvCache`: `node` is as deep as the
    request's tokens are known there; `tail` stands for its last, partial block; `promised` is the deepest node that it
    will compute. From `publish_at` computed tokens on there is something new to enter into the tree. `is_waiting`: the
    request holds nothing yet and wants the prefix that ends in `node`.
    """

    __slots__ = ("_pool", "block_ids", "is_waiting", "node", "num_slots", "promised", "publish_at", "root", "tail")

    def __init__(self, pool: BlockPool, root: PrefixRoot) -> None:
        self._pool = pool
        self.block_ids: list[int] = []
        self.num_slots = 0
        self.root = root
        self.node: PrefixNode = root
        self.tail: PrefixNode | None = None
        self.promised: PrefixNode | None = None
        self.publish_at = NEVER
        self.is_waiting = False

    @property
    def block_ids_by_group(self) -> tuple[tuple[int, ...], ...]:
        return (tuple(self.block_ids),) * self._pool.num_groups

    def num_missing(self, num_tokens: int) -> int:
        """How many blocks must be added before `num_tokens` tokens fit."""
        return max(0, -(-(num_tokens - self.num_slots) // BLOCK_TOKENS))

    def share(self, block_ids: list[int]) -> None:
        """Holds these blocks too, which somebody holds or which are cached, after those there are."""
        self._pool.acquire(block_ids)
        self.block_ids += block_ids
        self.num_slots += len(block_ids) * BLOCK_TOKENS

    def append(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Takes `count` more blocks from the pool, which must have them free, and returns these for each group."""
        new_block_ids = self._pool.allocate(count)
        self.block_ids += new_block_ids
        self.num_slots += count * BLOCK_TOKENS
        return (tuple(new_block_ids),) * self._pool.num_groups

    def release(self) -> None:
        """Gives every block back, the last one first, so that the free list hands them out again in order."""
        self._pool.release(reversed(self.block_ids))
        self.block_ids = []
        self.num_slots = 0
