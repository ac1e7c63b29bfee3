"""Prefixes in the store: what is known goes there at the end, and comes back when a request begins like it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from octavo.kvcache.block_moves import PlannedMoves
from octavo.kvcache.block_store import Parts
from octavo.kvcache.block_table import BlockTable
from octavo.kvcache.layer_groups import LayerGroups
from octavo.kvcache.offload import MAX_SAVES_PER_STEP, Offload, digest_of, next_digest
from octavo.kvcache.prefix_cache import PrefixCache
from octavo.kvcache.prefix_tree import BLOCK_BYTES, PrefixNode
from octavo.kvcache.wanted_prefixes import WantedPrefixes
from octavo.step import BlockAddress


class StoredPrefixes:
    """Brings prefixes from the store of `offload` back into `prefixes`, and the other way."""

    def __init__(
        self,
        offload: Offload,
        prefixes: PrefixCache,
        wanted: WantedPrefixes,
        groups: LayerGroups,
        moves: PlannedMoves,
    ) -> None:
        self._offload = offload
        self._prefixes = prefixes
        self._wanted = wanted
        self._groups = groups
        self._moves = moves

    def save_all(self) -> Iterator[tuple[BlockAddress, ...]]:
        """Steps that save everything known: what each has to save. Each must be made before the next is asked for."""
        nodes = list(islice(self._prefixes.nodes(), self._offload.max_blocks))
        while nodes:
            # The beginnings last: what came last stays longest.
            for node in reversed(nodes[-MAX_SAVES_PER_STEP:]):
                self._groups.save(node)
            del nodes[-MAX_SAVES_PER_STEP:]
            yield self._moves.start().saves
            self._offload.flush()

    def load(self, table: BlockTable, tokens: bytes) -> tuple[PrefixNode, bytes, bool]:
        """Brings back what the store has of `tokens` after the table's node; like `PrefixCache.descend`.

        What is brought back belongs to nobody, but is wanted by the table's request.
        """
        node, digest = table.node, digest_of(table.node)
        held: list[list[int | None]] = []
        is_pending = False
        while len(block := tokens[:BLOCK_BYTES]) == BLOCK_BYTES and block not in node.children:
            digest = next_digest(digest, block)
            if not self._offload.has(digest):
                break
            if not self._offload.may_load:
                is_pending = True
                break
            parts = self._offload.fetch(digest)
            block_ids = None if parts is None else self._allocate_for(parts)
            if parts is None or block_ids is None:
                break
            self._offload.plan_load(parts, block_ids)
            node = self._prefixes.know(node, block, block_ids)
            node.digest = digest
            held.append(block_ids)
            tokens = tokens[BLOCK_BYTES:]
        self._wanted.want(table, node)
        for block_ids in reversed(held):
            self._groups.release(block_ids)
        if held:
            self._prefixes.touch(node)
        return node, tokens, is_pending

    def _allocate_for(self, parts: Parts) -> list[int | None] | None:
        """A block for each part there is, if there is room without what other waiting requests want."""
        if parts[0] is None or not self._groups.make_room(1, spare_wanted=True):
            return None
        return self._groups.allocate([part is not None for part in parts])
