"""The blocks one request holds, in the order of its tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from octavo.config import BLOCK_TOKENS
from octavo.errors import EngineError
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.prefix_tree import PrefixNode, PrefixRoot
from octavo.kvcache.window_group import WindowBlocks, WindowGroup

NEVER = sys.maxsize

PUBLISHED_TOKENS = 4 * BLOCK_TOKENS
"""While nobody looks for a prefix, what a request computes becomes known so many tokens at a time."""


def blocks_for(num_tokens: int) -> int:
    """The number of blocks that `num_tokens` tokens occupy."""
    return -(-num_tokens // BLOCK_TOKENS)


class BlockTable:
    """Token position p of the request lies in slot p % BLOCK_TOKENS of block `block_ids[p // BLOCK_TOKENS]`.

    That is so in the first layer group; `window_blocks` are those of each further group.

    Beside the blocks it remembers the request's place in the prefix tree, for `KvCache`: `node` is as deep as the
    request's tokens are known there; `tail` stands for its last, partial block; `promised` is the deepest node that it
    will compute. At `publish_at` computed tokens `KvCache.publish` has something to do. `is_waiting`: the
    request holds nothing yet and wants the prefix that ends in `node`. A table that `shares` nothing has no such place.
    """

    __slots__ = (
        "_groups",
        "_pool",
        "block_ids",
        "is_waiting",
        "node",
        "num_slots",
        "promised",
        "publish_at",
        "root",
        "shares",
        "tail",
        "window_blocks",
    )

    def __init__(
        self, pool: BlockPool, root: PrefixRoot, groups: Sequence[WindowGroup] = (), *, shares: bool = True
    ) -> None:
        self._pool = pool
        self._groups = groups
        self.block_ids: list[int] = []
        self.window_blocks = [WindowBlocks() for _ in groups]
        self.num_slots = 0
        self.shares = shares
        self.root = root
        self.node: PrefixNode = root
        self.tail: PrefixNode | None = None
        self.promised: PrefixNode | None = None
        self.publish_at = NEVER
        self.is_waiting = False

    @property
    def block_ids_by_group(self) -> tuple[tuple[int, ...], ...]:
        return (tuple(self.block_ids), *(tuple(blocks.block_ids) for blocks in self.window_blocks))

    @property
    def num_known_tokens(self) -> int:
        """As many of the request's tokens lead to `node`."""
        return self.node.depth * BLOCK_TOKENS

    def blocks_at(self, index: int) -> list[int]:
        """The block at an index in each group."""
        return [self.block_ids[index], *(blocks.block_ids[index] for blocks in self.window_blocks)]

    def held_at(self, index: int) -> list[int | None]:
        """The block at an index in each group; None where it has been given back."""
        return [self.block_ids[index], *(blocks.held_at(index) for blocks in self.window_blocks)]

    def num_missing(self, num_tokens: int) -> int:
        """How many blocks must be added before `num_tokens` tokens fit."""
        return max(0, -(-(num_tokens - self.num_slots) // BLOCK_TOKENS))

    def share(self, node: PrefixNode) -> None:
        """Holds the blocks of the prefix that ends in `node` too; the table is empty."""
        self.block_ids = node.path()
        self._pool.acquire(self.block_ids)
        for group, blocks in zip(self._groups, self.window_blocks, strict=True):
            group.share(blocks, node)
        self.num_slots = len(self.block_ids) * BLOCK_TOKENS

    def share_with(self, twin: BlockTable, num_full: int) -> None:
        """An empty `twin` holds the first `num_full` blocks too."""
        twin.block_ids = self.block_ids[:num_full]
        self._pool.acquire(twin.block_ids)
        for group, blocks, twins in zip(self._groups, self.window_blocks, twin.window_blocks, strict=True):
            group.fork(blocks, twins, num_full)
        twin.num_slots = num_full * BLOCK_TOKENS

    def append(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Takes `count` more blocks of each group, which must have them free, and returns these for each group."""
        new_block_ids = self._pool.allocate(count)
        self.block_ids += new_block_ids
        self.num_slots += count * BLOCK_TOKENS
        if not self._groups:
            return (tuple(new_block_ids),)
        groups = zip(self._groups, self.window_blocks, strict=True)
        return (tuple(new_block_ids), *(group.append(blocks, count) for group, blocks in groups))

    def give_back(self, num_computed_tokens: int) -> None:
        """Lets go of the blocks that no window reaches any more."""
        for group, blocks in zip(self._groups, self.window_blocks, strict=True):
            group.give_back(blocks, num_computed_tokens)

    def expect_block(self, num_computed_tokens: int) -> None:
        """`publish_at` is where blocks will have filled that are to become known, or that no window reaches."""
        if self.shares or self._groups:
            num_tokens = BLOCK_TOKENS if self._groups else PUBLISHED_TOKENS
            self.publish_at = (num_computed_tokens // num_tokens + 1) * num_tokens

    def release(self) -> None:
        """Gives every block back, the last one first, so that the free list hands them out again in order."""
        self._pool.release(reversed(self.block_ids))
        self.block_ids = []
        self.num_slots = 0
        for group, blocks in zip(self._groups, self.window_blocks, strict=True):
            group.leave(blocks)

    def check_integrity(self) -> None:
        """Raises `EngineError` unless every group has a block for each index, and none twice."""
        if self.num_slots != len(self.block_ids) * BLOCK_TOKENS or len(set(self.block_ids)) < len(self.block_ids):
            raise EngineError("a block table has a block twice, or other slots than blocks")
        for blocks in self.window_blocks:
            if len(blocks.block_ids) != len(self.block_ids) or len(set(blocks.held)) < len(blocks.held):
                raise EngineError("a block table has other blocks in a window group than in the first")
