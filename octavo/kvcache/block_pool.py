"""The blocks of the KV cache: which are free, and how many holders each of the others has.

A block is `BLOCK_TOKENS` slots, one token's keys and values each, in every layer. The pool knows blocks by number only;
where their bytes lie is the backend's affair. Memory, 8 blocks of which three are held, block 2 by two requests:

    block          0     1     2     3     4     5     6     7
    references     1     1     2     0     0     0     0     0
    free list      [7, 6, 5, 4, 3]          taken from, and given back to, the right end
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.errors import EngineError


class BlockPool:
    """A fixed number of blocks with reference counts; every operation costs O(blocks touched).

    A block stands for the same slots in each of the backend's `num_groups` layer groups.

    The free list is last in, first out, so that a block is used again while it is warm. Raises `EngineError` when a
    caller breaks the rules (allocating more than is free, touching a free block): a bug, never a matter of load.
    """

    __slots__ = ("_free", "_references", "num_blocks", "num_groups")

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self.num_blocks = num_blocks
        self.num_groups = num_groups
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def references(self, block_id: int) -> int:
        """How many holders the block has; 0 for a free one."""
        return self._references[block_id]

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free blocks, with one reference each."""
        free = self._free
        if count > len(free):
            raise EngineError(f"{count} KV blocks asked for, {len(free)} of {self.num_blocks} free")
        block_ids = [free.pop() for _ in range(count)]
        for block_id in block_ids:
            self._references[block_id] = 1
        return block_ids

    def acquire(self, block_ids: Iterable[int]) -> None:
        """One more holder for each of these blocks, which somebody holds already."""
        for block_id in block_ids:
            if self._references[block_id] == 0:
                raise EngineError(f"KV block {block_id} is free and cannot be shared")
            self._references[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """One holder fewer for each of these blocks; the last one frees it."""
        references = self._references
        for block_id in block_ids:
            count = references[block_id]
            if count == 0:
                raise EngineError(f"KV block {block_id} is free already")
            references[block_id] = count - 1
            if count == 1:
                self._free.append(block_id)

    def check_integrity(self) -> None:
        """Raises `EngineError` unless the free list is exactly the blocks without a holder, each once."""
        unheld = [block_id for block_id, count in enumerate(self._references) if count == 0]
        if sorted(self._free) != unheld or min(self._references, default=0) < 0:
            raise EngineError("the KV block pool's free list and reference counts disagree")
