"""The blocks one request holds, in the order of its tokens."""

from __future__ import annotations

from octavo.config import BLOCK_TOKENS
from octavo.kvcache.block_pool import BlockPool


def blocks_for(num_tokens: int) -> int:
    """The number of blocks that `num_tokens` tokens occupy."""
    return -(-num_tokens // BLOCK_TOKENS)


class BlockTable:
    """Token position p of the request lies in slot p % BLOCK_TOKENS of block `block_ids[p // BLOCK_TOKENS]`."""

    __slots__ = ("_pool", "block_ids", "num_slots")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.block_ids: list[int] = []
        self.num_slots = 0

    def num_missing(self, num_tokens: int) -> int:
        """How many blocks must be added before `num_tokens` tokens fit."""
        return max(0, -(-(num_tokens - self.num_slots) // BLOCK_TOKENS))

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
