"""How much of a request's tokens is known: in the prefix tree, in the store, and in every layer group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.config import BLOCK_TOKENS
from octavo.kvcache.block_table import BlockTable
from octavo.kvcache.prefix_cache import PrefixCache
from octavo.kvcache.prefix_tree import BLOCK_BYTES, PrefixNode, TokenIds, nearest
from octavo.kvcache.stored_prefixes import StoredPrefixes
from octavo.kvcache.wanted_prefixes import WantedPrefixes
from octavo.kvcache.window_group import WindowGroup


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How much of a request's tokens is known: whole blocks up to `node`, then the beginning of the block of `partial`.

    `is_pending`: a running request is about to compute the block that comes next.
    """

    node: PrefixNode
    partial: PrefixNode | None
    num_partial_tokens: int
    is_pending: bool

    @property
    def num_tokens(self) -> int:
        return self.node.depth * BLOCK_TOKENS + self.num_partial_tokens

    def whole_blocks(self) -> PrefixMatch:
        """Less, but without a block to copy from, which must be held for a step beside the copy."""
        return replace(self, partial=None, num_partial_tokens=0)

    def count_use(self) -> None:
        """It has been taken over: what was used often is evicted late, under "lfu"."""
        self.node.num_uses += 1
        if self.partial is not None:
            self.partial.num_uses += 1


class PrefixMatcher:
    """Finds what a waiting request can take over, and keeps that from going: the request wants it."""

    def __init__(
        self,
        prefixes: PrefixCache,
        windows: Sequence[WindowGroup],
        wanted: WantedPrefixes,
        stored: StoredPrefixes | None,
    ) -> None:
        self._prefixes = prefixes
        self._windows = windows
        self._wanted = wanted
        self._stored = stored

    def match(self, table: BlockTable, token_ids: TokenIds, max_tokens: int, *, may_load: bool) -> PrefixMatch:
        """What is known of the first `max_tokens` tokens; goes on from what the table's request wants already."""
        known = table.node.standing()
        tokens = token_ids[known.depth * BLOCK_TOKENS : max_tokens].tobytes()
        known, tokens, is_pending = self._prefixes.descend(known, tokens)
        self._wanted.want(table, known)
        if may_load and not is_pending and self._stored is not None:
            known, tokens, is_pending = self._stored.load(table, tokens)
        node = self._usable(known)
        if node is known:
            partial, num_partial_tokens = nearest(node, tokens[:BLOCK_BYTES])
            if partial is not None and all(group.block_of(partial) is not None for group in self._windows):
                return PrefixMatch(node, partial, num_partial_tokens, is_pending)
        return PrefixMatch(node, None, 0, is_pending)

    def _usable(self, node: PrefixNode) -> PrefixNode:
        """How far a known prefix can be taken over in every group."""
        while True:
            end = node
            for group in self._windows:
                end = group.usable(end)
            if end is node:
                return end
            node = end
