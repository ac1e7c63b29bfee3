"""Copies of blocks on their way to the backend."""

from __future__ import annotations

from collections.abc import Sequence, Set

from octavo.step import BlockCopy


class BlockCopies:
    """Copies planned, and those that the step under way makes. Whoever plans one holds its source until it is done.

    A step that fails may not have copied: unless it was `done`, its copies are part of the next one again. That is safe
    as a destination that changed hands since is written only after the copies of a step.
    """

    def __init__(self) -> None:
        self._planned: list[BlockCopy] = []
        self._under_way: tuple[BlockCopy, ...] = ()

    def plan(self, copy: BlockCopy) -> None:
        self._planned.append(copy)

    def start(self) -> tuple[BlockCopy, ...]:
        """The copies that the next step must make."""
        if self._planned:
            self._under_way += tuple(self._planned)
            self._planned.clear()
        return self._under_way

    def done(self) -> tuple[BlockCopy, ...]:
        """The step has been made, and with it these copies."""
        made, self._under_way = self._under_way, ()
        return made

    def cancel(self, destinations: Sequence[Set[int]]) -> list[BlockCopy]:
        """Gives up the copies into these blocks of each group, and says which they were."""
        cancelled = [copy for copy in self.awaited if copy.destination in destinations[copy.group]]
        self._planned = [copy for copy in self._planned if copy not in cancelled]
        self._under_way = tuple(copy for copy in self._under_way if copy not in cancelled)
        return cancelled

    @property
    def awaited(self) -> list[BlockCopy]:
        """All that have not been made."""
        return [*self._under_way, *self._planned]
