"""What a step moves before it computes anything: copies of blocks, saves to the store, loads from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.kvcache.copies import BlockCopies
from octavo.kvcache.offload import Offload, digest_of
from octavo.kvcache.prefix_tree import BLOCK_BYTES, PrefixNode
from octavo.step import BlockAddress, BlockCopy, BlockLoad


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """The part of a `StepPlan` that moves blocks."""

    copies: tuple[BlockCopy, ...]
    saves: tuple[BlockAddress, ...]
    loads: tuple[BlockLoad, ...]

    @property
    def any(self) -> bool:
        return bool(self.copies or self.saves or self.loads)


class PlannedMoves:
    """The moves of the next step, and of the one under way. Without `offload` nothing is saved or loaded."""

    def __init__(self, copies: BlockCopies, offload: Offload | None) -> None:
        self._copies = copies
        self._offload = offload

    def plan_copies(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """From each group's source, which is held until the copy has been made, to its destination."""
        for group, (source, destination) in enumerate(zip(sources, destinations, strict=True)):
            self._copies.plan(BlockCopy(source, destination, group))

    def may_save(self, node: PrefixNode) -> bool:
        """Whole blocks that have arrived: a partial one is computed again in no time."""
        if self._offload is None or len(node.tokens) < BLOCK_BYTES:
            return False
        assert node.block_id is not None
        return not self.is_awaited(node.block_id)

    def plan_save(self, node: PrefixNode, block_ids: Sequence[int | None]) -> None:
        """Saves what lies in the blocks of a node, one for each group, for which `may_save` holds."""
        assert self._offload is not None
        self._offload.plan_save(digest_of(node), block_ids)

    def is_awaited(self, block_id: int) -> bool:
        """Whether something is yet to be copied or loaded into this block of the first group."""
        if self._offload is not None and self._offload.is_awaited(block_id):
            return True
        return any(copy.destination == block_id and copy.group == 0 for copy in self._copies.awaited)

    def start(self) -> BlockMoves:
        """What the next step must move."""
        saves, loads = self._offload.start() if self._offload is not None else ((), ())
        return BlockMoves(self._copies.start(), saves, loads)

    def done(self, saved: tuple[bytes, ...]) -> tuple[BlockCopy, ...]:
        """The step has been made; `saved` are the bytes it read. Returns the copies, whose sources may be let go."""
        if self._offload is not None:
            self._offload.done(saved)
        return self._copies.done()
