"""The KV cache as the scheduler sees it: block tables that grow, share prefixes, fork and end.

A prompt takes over the longest known prefix:

    prompt          [ block 0 ][ block 1 ][ block 2 ][ blo
    known           [ same    ][ same    ][ same, othe ]
    taken over        shared     shared     copied: the first 4 tokens are the same, the rest is overwritten
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from octavo.config import BLOCK_TOKENS, EvictionPolicy
from octavo.errors import EngineError
from octavo.kvcache.block_moves import BlockMoves, PlannedMoves
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.block_store import BlockStore
from octavo.kvcache.block_table import NEVER, BlockTable
from octavo.kvcache.copies import BlockCopies
from octavo.kvcache.layer_groups import LayerGroups
from octavo.kvcache.offload import Offload
from octavo.kvcache.prefix_cache import PrefixCache
from octavo.kvcache.prefix_match import PrefixMatch, PrefixMatcher
from octavo.kvcache.prefix_tree import BLOCK_BYTES, TokenIds
from octavo.kvcache.stored_prefixes import StoredPrefixes
from octavo.kvcache.wanted_prefixes import WantedPrefixes
from octavo.kvcache.window_group import WindowGroup
from octavo.request import PrefixKey
from octavo.step import BlockAddress


class KvCache:
    """`num_blocks` blocks, the prefixes known to lie in them, and the block tables of requests.

    A table lives from `open` to `close`. While its request waits it holds nothing, but wants the prefix that `match`
    found; `enter` gives it blocks, `publish` makes known what has been computed in them, `leave` takes them away again.
    Every call costs at most O(tokens it concerns). With `prefix_caching` off, tables share only
    within their group, as `open` is told.

    `groups` are the model's layer groups beside the first. The prefix tree is about the blocks of the first; what it
    knows can be taken over only as far as the other groups still know what they need of it.

    With a `store`, what is evicted is saved there, and comes back when a request begins like it.
    """

    def __init__(
        self,
        num_blocks: int,
        groups: Sequence[WindowGroup] = (),
        *,
        prefix_caching: bool = True,
        eviction_policy: EvictionPolicy = "lru",
        store: BlockStore | None = None,
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.copies = BlockCopies()
        self._windows = tuple(groups)
        self._prefix_caching = prefix_caching
        self._prefixes = PrefixCache(self.pool, self._windows, eviction_policy)
        self._offload = None if store is None else Offload(store)
        self._moves = PlannedMoves(self.copies, self._offload)
        self._groups = LayerGroups(self.pool, self._windows, self._prefixes, self._moves)
        self._wanted = WantedPrefixes(self._prefixes, self._windows)
        self._stored = self._stored_prefixes()
        self._matcher = PrefixMatcher(self._prefixes, self._windows, self._wanted, self._stored)

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that are free, or cached and may be given up."""
        return self._groups.num_available

    @property
    def num_evicted(self) -> int:
        """Blocks of known prefixes given up so far."""
        return self._prefixes.num_evicted

    @property
    def num_saved(self) -> int:
        """Blocks saved to the store so far."""
        return 0 if self._offload is None else self._offload.num_saved

    @property
    def num_loaded(self) -> int:
        """Blocks that came back from it."""
        return 0 if self._offload is None else self._offload.num_loaded

    def open(self, key: PrefixKey, parent_id: str | None = None) -> BlockTable:
        """A table that shares with those of the same key; without prefix caching, with those of the same parent."""
        return self._open(key if self._prefix_caching else replace(key, parent_id=parent_id))

    def match(self, table: BlockTable, token_ids: TokenIds, max_tokens: int, *, may_load: bool = False) -> PrefixMatch:
        """What is known of the first `max_tokens` tokens of a waiting request; the rest is computed in any case.

        From now on the request wants this prefix: it is not evicted for other waiting requests. Asking again costs no
        more than what has become known since. With `may_load`, the store is looked into for what comes next; what a
        step has no time to load is pending.
        """
        if not table.shares:
            return PrefixMatch(table.root, None, 0, False)
        return self._matcher.match(table, token_ids, max_tokens, may_load=may_load)

    def enter(
        self,
        table: BlockTable,
        token_ids: TokenIds,
        match: PrefixMatch,
        *,
        num_tokens: int,
        num_spare_blocks: int = 0,
        spare_wanted: bool = False,
    ) -> bool:
        """Takes over what was matched and adds blocks for `num_tokens` tokens in all; if it cannot: False, no change.

        It cannot if that leaves fewer than `num_spare_blocks` available or, with `spare_wanted`, costs a prefix that
        another waiting request wants. The rest of `token_ids` is promised to whoever has the same.
        """
        sources = [] if match.partial is None else self._groups.hold(match.partial)
        table.share(match.node)
        num_new = table.num_missing(num_tokens)
        if not (
            self._groups.are_available(num_new, num_spare_blocks)
            and self._groups.make_room(num_new, spare_wanted=spare_wanted)
        ):
            table.release()
            self._prefixes.offer(match.node)
            self._groups.release(sources)
            return False
        table.append(num_new)
        if sources:
            self._moves.plan_copies(sources, table.blocks_at(match.node.depth))
        if table.shares:
            self._take_over(table, token_ids, match)
        table.expect_block(match.node.depth * BLOCK_TOKENS)
        return True

    def make_room(self, num_blocks: int, *, spare_wanted: bool = False) -> bool:
        """Evicts until `num_blocks` are free in each group; False if there is not enough to evict."""
        return self._groups.make_room(num_blocks, spare_wanted=spare_wanted)

    def make_ample_room(self, num_blocks: int, num_spare_blocks: int) -> bool:
        """The same, if so many more could be had after these and nothing goes that a waiting request wants."""
        available = self._groups.are_available(num_blocks, num_spare_blocks)
        return available and self._groups.make_room(num_blocks, spare_wanted=True)

    def publish(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> None:
        """Makes known the blocks that have filled, and lets go of those that no window reaches any more.

        To be called when `num_computed_tokens` has reached `table.publish_at`, and before anybody looks for a prefix.
        """
        if num_computed_tokens - table.num_known_tokens >= BLOCK_TOKENS:
            self._forget_tail(table)
            self._know_full_blocks(table, token_ids, num_computed_tokens)
        table.give_back(num_computed_tokens)
        table.expect_block(num_computed_tokens)

    def publish_tail(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> None:
        """Makes known the last, partial block as it is now; it may be written on, since others only copy it."""
        self._forget_tail(table)
        node, num_known = table.node, table.num_known_tokens
        if not table.shares or node.removed or not num_known < num_computed_tokens < num_known + BLOCK_TOKENS:
            return
        tokens = token_ids[num_known:num_computed_tokens].tobytes()
        if tokens not in node.children and not self._moves.is_awaited(table.block_ids[node.depth]):
            table.tail = self._prefixes.know(node, tokens, table.held_at(node.depth))

    def leave(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> None:
        """Takes every block away. What was computed in them stays known, until it is evicted."""
        if not table.block_ids:
            return
        self.publish(table, token_ids, num_computed_tokens)
        if table.promised is not None:
            self._prefixes.withdraw(table.promised)
        self.publish_tail(table, token_ids, num_computed_tokens)
        self._cancel_copies(table)
        table.release()
        for node in (table.node.standing(), table.tail):
            if node is not None:
                self._prefixes.touch(node)
        table.promised = table.tail = None
        table.node = table.root
        table.publish_at = NEVER

    def close(self, table: BlockTable) -> None:
        """The request is gone; its table holds nothing any more."""
        self._wanted.give_up(table)
        self._prefixes.close(table.root)

    def fork(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> BlockTable:
        """Another table for the same tokens: full blocks are shared, the partial one is copied before the next step.

        Needs one free block if there is a partial one.
        """
        self.publish(table, token_ids, num_computed_tokens)
        num_full, num_partial_tokens = divmod(num_computed_tokens, BLOCK_TOKENS)
        twin = self._open(table.root.key)
        table.share_with(twin, num_full)
        if num_partial_tokens:
            twin.append(1)
            sources = table.blocks_at(num_full)
            self._groups.acquire(sources)
            self._moves.plan_copies(sources, twin.blocks_at(num_full))
        twin.node, twin.publish_at = table.node, table.publish_at
        return twin

    def start_moves(self) -> BlockMoves:
        """What the next step must save, load and copy before it computes anything."""
        return self._moves.start()

    def finish_moves(self, saved: tuple[bytes, ...] = ()) -> None:
        """The step has been made, and with it the moves of its plan; `saved` are the bytes that it read."""
        for copy in self._moves.done(saved):
            self._groups.release_one(copy.group, copy.source)

    def reset_prefixes(self) -> int:
        """Forgets every prefix, in the store too; returns how many blocks of memory that were.

        Requests keep what they hold.
        """
        if self._offload is not None:
            self._offload.clear()
        return self._prefixes.reset()

    def save_all(self) -> Iterator[tuple[BlockAddress, ...]]:
        """Steps that save everything known: what each has to save. Each must be made before the next is asked for."""
        return iter(()) if self._stored is None else self._stored.save_all()

    def close_store(self) -> None:
        """Waits until what was saved has been written."""
        if self._offload is not None:
            self._offload.close()

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Raises `EngineError` unless every block has as many references as holders, among `tables` and copies.

        `tables` are all that are open and hold something. Checks the prefix tree as well.
        """
        self.pool.check_integrity()
        holders = [Counter[int]() for _ in range(1 + len(self._windows))]
        for copy in self.copies.awaited:
            holders[copy.group][copy.source] += 1
        for table in tables:
            table.check_integrity()
            holders[0].update(table.block_ids)
            for counts, blocks in zip(holders[1:], table.window_blocks, strict=True):
                counts.update(blocks.held)
        if any(self.pool.references(block_id) != holders[0][block_id] for block_id in range(self.num_blocks)):
            raise EngineError("KV blocks have other holders than counted")
        nodes = self._prefixes.check_integrity()
        for group, counts in zip(self._windows, holders[1:], strict=True):
            group.check_integrity(counts, nodes)

    def _stored_prefixes(self) -> StoredPrefixes | None:
        if self._offload is None:
            return None
        return StoredPrefixes(self._offload, self._prefixes, self._wanted, self._groups, self._moves)

    def _open(self, key: PrefixKey) -> BlockTable:
        shares = self._prefix_caching or key.parent_id is not None
        return BlockTable(self.pool, self._prefixes.open(key), self._windows, shares=shares)

    def _take_over(self, table: BlockTable, token_ids: TokenIds, match: PrefixMatch) -> None:
        """The request holds its prefix instead of wanting it, and promises what comes after."""
        self._wanted.give_up(table)
        match.count_use()
        table.node = match.node
        table.promised = self._prefixes.promise(match.node, token_ids[table.num_known_tokens :].tobytes())

    def _know_full_blocks(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> None:
        node = table.node
        if not table.shares or node.removed:  # another's, with the same tokens, may have been evicted
            return
        end = num_computed_tokens // BLOCK_TOKENS * BLOCK_TOKENS
        tokens = token_ids[table.num_known_tokens : end].tobytes()
        for place in range(0, len(tokens), BLOCK_BYTES):
            node = self._prefixes.know(node, tokens[place : place + BLOCK_BYTES], table.held_at(node.depth))
        table.node = node

    def _forget_tail(self, table: BlockTable) -> None:
        if table.tail is not None and not table.tail.removed:
            self._prefixes.forget(table.tail)
        table.tail = None

    def _cancel_copies(self, table: BlockTable) -> None:
        """What was to be copied into the blocks of a request that leaves is not wanted any more."""
        if not self.copies.awaited:
            return
        held = [set(table.block_ids), *(set(blocks.held) for blocks in table.window_blocks)]
        for copy in self.copies.cancel(held):
            self._groups.release_one(copy.group, copy.source)
