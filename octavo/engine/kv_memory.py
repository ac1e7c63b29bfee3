"""How the memory of the KV cache is divided between the layer groups of a model."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from octavo.kvcache.block_table import blocks_for
from octavo.step import KvGroup

# A window group gets so many times what running requests can need: the rest keeps the windows of known prefixes.
_WINDOW_FACTOR = 2


@dataclass(frozen=True, slots=True)
class KvMemory:
    """The rule, for a model's `groups` (the first sees everything) and the limits of a step.

    With n blocks in the first group, another group that sees everything has n as well. A group with a window needs, for
    each running request, the blocks its window reaches and one more, and in each step those of the step's tokens: twice
    that, but never more than n.
    """

    groups: tuple[KvGroup, ...]
    max_num_seqs: int
    max_num_batched_tokens: int

    def blocks(self, num_blocks: int) -> tuple[int, ...]:
        """The blocks of each group when the first has `num_blocks`."""
        return (num_blocks, *(min(num_blocks, self._most_useful(group, num_blocks)) for group in self.groups[1:]))

    def bytes(self, num_blocks: int) -> int:
        """What all groups take when the first has `num_blocks`."""
        counts = self.blocks(num_blocks)
        return sum(count * group.block_bytes for count, group in zip(counts, self.groups, strict=True))

    def most_blocks(self, budget_bytes: int) -> int:
        """How many blocks the first group can have if all groups together may take `budget_bytes`."""
        upper = budget_bytes // self.groups[0].block_bytes
        return bisect_right(range(upper + 1), budget_bytes, key=self.bytes) - 1

    def _most_useful(self, group: KvGroup, num_blocks: int) -> int:
        if group.window is None:
            return num_blocks
        running = self.max_num_seqs * (blocks_for(group.window) + 2) + blocks_for(self.max_num_batched_tokens)
        return _WINDOW_FACTOR * running
