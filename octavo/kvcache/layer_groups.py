"""The blocks of all layer groups together: how many can be had, who holds them beside tables, what goes for others."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.kvcache.block_moves import PlannedMoves
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.prefix_cache import PrefixCache
from octavo.kvcache.prefix_tree import PrefixNode
from octavo.kvcache.window_group import WindowGroup


class LayerGroups:
    """`pool` are the blocks of the first group, which `prefixes` is about; `windows` are the further groups.

    Where blocks are listed by group, that of the first stands first; None stands where a group has none. What is
    evicted is saved, if there is a store.
    """

    def __init__(
        self, pool: BlockPool, windows: Sequence[WindowGroup], prefixes: PrefixCache, moves: PlannedMoves
    ) -> None:
        self._pool = pool
        self._windows = windows
        self._prefixes = prefixes
        self._moves = moves

    @property
    def num_available(self) -> int:
        """Blocks of the first group that are free, or cached and may be given up."""
        return self._pool.num_free + self._pool.num_cached

    def are_available(self, num_new: int, num_spare: int) -> bool:
        """Whether `num_new` blocks can be had, and `num_spare` after that, but no more of these than windows reach."""
        return num_new + num_spare <= self.num_available and all(
            num_new + group.num_spare(num_spare) <= group.num_available for group in self._windows
        )

    def make_room(self, num_blocks: int, *, spare_wanted: bool = False) -> bool:
        """Evicts until `num_blocks` are free in each group; False if there is not enough to evict."""
        while self._pool.num_free < num_blocks:
            node = self._prefixes.next_to_go(spare_wanted=spare_wanted)
            if node is None:
                return False
            self.save(node)
            self._prefixes.evict(node)
        return all(group.make_room(num_blocks) for group in self._windows)

    def save(self, node: PrefixNode) -> None:
        """Plans to save what lies in a node's blocks, if there is a store and the blocks are worth it."""
        if self._moves.may_save(node):
            self._moves.plan_save(node, self._prefixes.blocks_of(node))

    def allocate(self, has_block: Sequence[bool]) -> list[int | None]:
        """Takes a free block in each group that is to have one."""
        pools = (self._pool, *(group.pool for group in self._windows))
        return [pool.allocate(1)[0] if has else None for pool, has in zip(pools, has_block, strict=True)]

    def hold(self, node: PrefixNode) -> list[int]:
        """Holds the blocks of a node, which has one in each group, and gives these."""
        held = [block_id for block_id in self._prefixes.blocks_of(node) if block_id is not None]
        self.acquire(held)
        return held

    def acquire(self, block_ids: Sequence[int]) -> None:
        """One more holder for a block of each group."""
        self._pool.acquire(block_ids[:1])
        for group, block_id in zip(self._windows, block_ids[1:], strict=True):
            group.acquire((block_id,))

    def release(self, block_ids: Sequence[int | None]) -> None:
        """One holder fewer for a block of each group."""
        for group, block_id in enumerate(block_ids):
            if block_id is not None:
                self.release_one(group, block_id)

    def release_one(self, group: int, block_id: int) -> None:
        """One holder fewer for a block of the group number `group`."""
        if group > 0:
            self._windows[group - 1].release((block_id,))
            return
        self._pool.release((block_id,))
        self._prefixes.offer_block(block_id)
