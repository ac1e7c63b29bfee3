"""Copies of blocks on their way to the backend."""

from __future__ import annotations

from octavo.kvcache.block_pool import BlockPool
from octavo.step import BlockCopy


class BlockCopies:
    """Copies planned, and those that the step under way makes. Each holds its source until it has been made.

    A step that fails may not have copied: unless it was `done`, its copies are part of the next one again. That is safe
    as a destination that changed hands since is written only after the copies of a step.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.num_made = 0
        self._pool = pool
        self._planned: list[BlockCopy] = []
        self._under_way: tuple[BlockCopy, ...] = ()

    def plan(self, source: int, destination: int) -> None:
        self._pool.acquire([source] * self._pool.num_groups)
        self._planned += [BlockCopy(source, destination, group) for group in range(self._pool.num_groups)]

    def start(self) -> tuple[BlockCopy, ...]:
        """The copies that the next step must make."""
        self._under_way += tuple(self._planned)
        self._planned.clear()
        return self._under_way

    def done(self) -> list[int]:
        """The step has been made: its sources, which are not held any more."""
        sources = [copy.source for copy in self._under_way]
        self._under_way = ()
        self.num_made += len(sources)
        self._pool.release(sources)
        return sources

    @property
    def held(self) -> list[int]:
        return [copy.source for copy in (*self._under_way, *self._planned)]

    def is_awaited(self, block_id: int) -> bool:
        """Whether something is yet to be copied into this block."""
        return any(copy.destination == block_id for copy in (*self._under_way, *self._planned))
