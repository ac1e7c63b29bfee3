"""The blocks of the KV cache: which are free, how many holders each of the others has, and which are worth keeping.

A block is `BLOCK_TOKENS` slots, one token's keys and values each, in every layer. The pool knows blocks by number only;
where their bytes lie is the backend's affair. A block is in one of three states:

    held      at least one request reads or writes it
    cached    nobody holds it, but a known prefix lies in it (`keep`): it can be held again, or dropped to become free
    free      to be allocated

8 blocks, of which two are held by one request each and one by two; two more are cached:

    block          0     1     2     3     4     5     6     7
    references     1     1     2     0     0     0     0     0
    kept           no    no    yes   yes   yes   no    no    no
    free list      [7, 6, 5]          taken from, and given back to, the right end
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.errors import EngineError


class BlockPool:
    """A fixed number of blocks with reference counts; every operation costs O(blocks touched).

    The free list is last in, first out, so that a block is used again while it is warm. Raises `EngineError` when a
    caller breaks the rules (allocating more than is free, touching a free block): a bug, never a matter of load.
    """

    __slots__ = ("_free", "_kept", "_references", "num_blocks", "num_cached")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_cached = 0
        self._references = [0] * num_blocks
        self._kept = [False] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that are held."""
        return self.num_blocks - len(self._free) - self.num_cached

    def references(self, block_id: int) -> int:
        """How many holders the block has; 0 for a free or cached one."""
        return self._references[block_id]

    def is_kept(self, block_id: int) -> bool:
        return self._kept[block_id]

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
        """One more holder for each of these blocks, which are held or cached."""
        references, kept = self._references, self._kept
        for block_id in block_ids:
            count = references[block_id]
            if count == 0:
                if not kept[block_id]:
                    raise EngineError(f"KV block {block_id} is free and cannot be shared")
                self.num_cached -= 1
            references[block_id] = count + 1

    def release(self, block_ids: Iterable[int]) -> None:
        """One holder fewer for each of these blocks; without any, a block is cached if it is kept, else free."""
        references, kept = self._references, self._kept
        for block_id in block_ids:
            count = references[block_id]
            if count == 0:
                raise EngineError(f"KV block {block_id} has no holder")
            references[block_id] = count - 1
            if count > 1:
                continue
            if kept[block_id]:
                self.num_cached += 1
            else:
                self._free.append(block_id)

    def keep(self, block_id: int) -> None:
        """A known prefix lies in this block, which is held: when its last holder goes, it is cached."""
        if self._references[block_id] == 0 or self._kept[block_id]:
            raise EngineError(f"KV block {block_id} is not held, or kept already")
        self._kept[block_id] = True

    def drop(self, block_id: int) -> None:
        """Nothing known lies in this block any more: a cached one becomes free."""
        if not self._kept[block_id]:
            raise EngineError(f"KV block {block_id} is not kept")
        self._kept[block_id] = False
        if self._references[block_id] == 0:
            self.num_cached -= 1
            self._free.append(block_id)

    def check_integrity(self) -> None:
        """Raises `EngineError` unless the free list is exactly the blocks neither held nor kept, each once."""
        unheld = [block_id for block_id, count in enumerate(self._references) if count == 0]
        cached = [block_id for block_id in unheld if self._kept[block_id]]
        free = [block_id for block_id in unheld if not self._kept[block_id]]
        if sorted(self._free) != free or min(self._references, default=0) < 0 or len(cached) != self.num_cached:
            raise EngineError("the KV block pool's free list, reference counts and kept blocks disagree")
