"""The KV cache as the scheduler sees it: block tables that grow, share prefixes, fork and end.

A prompt takes over the longest known prefix:

    prompt          [ block 0 ][ block 1 ][ block 2 ][ blo
    known           [ same    ][ same    ][ same, othe ]
    taken over        shared     shared     copied: the first 4 tokens are the same, the rest is overwritten
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from octavo.config import BLOCK_TOKENS, EvictionPolicy
from octavo.errors import EngineError
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.block_store import BlockStore, Parts
from octavo.kvcache.block_table import NEVER, BlockTable
from octavo.kvcache.copies import BlockCopies
from octavo.kvcache.offload import MAX_SAVES_PER_STEP, Offload, digest_of, next_digest
from octavo.kvcache.prefix_cache import PrefixCache
from octavo.kvcache.prefix_tree import BLOCK_BYTES, PrefixNode, TokenIds, nearest
from octavo.kvcache.window_group import WindowGroup
from octavo.request import PrefixKey
from octavo.step import BlockAddress, BlockCopy, BlockLoad


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


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """The part of a `StepPlan` that moves blocks."""

    copies: tuple[BlockCopy, ...]
    saves: tuple[BlockAddress, ...]
    loads: tuple[BlockLoad, ...]


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
        self._groups = tuple(groups)
        self._prefix_caching = prefix_caching
        self._prefixes = PrefixCache(self.pool, self._groups, eviction_policy)
        self._offload = None if store is None else Offload(store)

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that are free, or cached and may be given up."""
        return self.pool.num_free + self.pool.num_cached

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

    # ---- the life of a table

    def open(self, key: PrefixKey, parent_id: str | None = None) -> BlockTable:
        """A table that shares with those of the same key; without prefix caching, with those of the same parent."""
        return self._open(key if self._prefix_caching else replace(key, parent_id=parent_id))

    def match(self, table: BlockTable, token_ids: TokenIds, max_tokens: int, *, may_load: bool = False) -> PrefixMatch:
        """What is known of the first `max_tokens` tokens of a waiting request; the rest is computed in any case.

        From now on the request wants this prefix: it is not evicted for other waiting requests. Asking again costs no
        more than what has become known since. With `may_load`, the store is looked into for what comes next; what a
        step has no time to load is pending.
        """
        if not self._shares(table):
            return PrefixMatch(table.root, None, 0, False)
        known = table.node.standing()
        tokens = token_ids[known.depth * BLOCK_TOKENS : max_tokens].tobytes()
        known, tokens, is_pending = self._prefixes.descend(known, tokens)
        self._want(table, known)
        if may_load and not is_pending and self._offload is not None:
            known, tokens, is_pending = self._load(self._offload, table, tokens)
        node = self._usable(known)
        if node is known:
            partial, num_partial_tokens = nearest(node, tokens[:BLOCK_BYTES])
            if partial is not None and all(group.block_of(partial) is not None for group in self._groups):
                return PrefixMatch(node, partial, num_partial_tokens, is_pending)
        return PrefixMatch(node, None, 0, is_pending)

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
        sources = self._hold(match.partial)
        table.share(match.node)
        num_new = table.num_missing(num_tokens)
        if not self._is_available(num_new, num_spare_blocks) or not self.make_room(num_new, spare_wanted=spare_wanted):
            table.release()
            self._prefixes.offer(match.node)
            self._let_go(sources)
            return False
        table.append(num_new)
        if sources:
            self._plan_copies(sources, table.blocks_at(match.node.depth))
        if self._shares(table):
            self._take_over(table, match)
            table.promised = self._prefixes.promise(match.node, token_ids[table.num_known_tokens :].tobytes())
        table.publish_at = self._next_publish(table, match.node.depth * BLOCK_TOKENS)
        return True

    def make_room(self, num_blocks: int, *, spare_wanted: bool = False) -> bool:
        """Evicts until `num_blocks` are free in each group; False if there is not enough to evict."""
        while self.pool.num_free < num_blocks:
            node = self._prefixes.next_to_go(spare_wanted=spare_wanted)
            if node is None:
                return False
            self._save(node)
            self._prefixes.evict(node)
        return all(group.make_room(num_blocks) for group in self._groups)

    def publish(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> None:
        """Makes known the blocks that have filled, and lets go of those that no window reaches any more.

        To be called when `num_computed_tokens` has reached `table.publish_at`.
        """
        self._forget_tail(table)
        node = table.node
        if self._shares(table) and not node.removed:  # another's, with the same tokens, may have been evicted
            end = num_computed_tokens // BLOCK_TOKENS * BLOCK_TOKENS
            tokens = token_ids[table.num_known_tokens : end].tobytes()
            for place in range(0, len(tokens), BLOCK_BYTES):
                node = self._prefixes.know(node, tokens[place : place + BLOCK_BYTES], table.held_at(node.depth))
            table.node = node
        table.give_back(num_computed_tokens)
        table.publish_at = self._next_publish(table, num_computed_tokens)

    def publish_tail(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> None:
        """Makes known the last, partial block as it is now; it may be written on, since others only copy it."""
        self._forget_tail(table)
        node, num_known = table.node, table.num_known_tokens
        if not self._shares(table) or node.removed or not num_known < num_computed_tokens < num_known + BLOCK_TOKENS:
            return
        tokens = token_ids[num_known:num_computed_tokens].tobytes()
        if tokens not in node.children and not self._is_awaited(table.block_ids[node.depth]):
            table.tail = self._prefixes.know(node, tokens, table.held_at(node.depth))

    def leave(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> None:
        """Takes every block away. What was computed in them stays known, until it is evicted."""
        if not table.block_ids:
            return
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
        if table.is_waiting:
            self._prefixes.unwant(table.node.standing())
        self._prefixes.close(table.root)

    def fork(self, table: BlockTable, num_computed_tokens: int) -> BlockTable:
        """Another table for the same tokens: full blocks are shared, the partial one is copied before the next step.

        Needs one free block if there is a partial one.
        """
        num_full, num_partial_tokens = divmod(num_computed_tokens, BLOCK_TOKENS)
        twin = self._open(table.root.key)
        table.share_with(twin, num_full)
        if num_partial_tokens:
            twin.append(1)
            sources = table.blocks_at(num_full)
            self._acquire(sources)
            self._plan_copies(sources, twin.blocks_at(num_full))
        twin.node, twin.publish_at = table.node, table.publish_at
        return twin

    def start_moves(self) -> BlockMoves:
        """What the next step must save, load and copy before it computes anything."""
        saves, loads = self._offload.start() if self._offload is not None else ((), ())
        return BlockMoves(self.copies.start(), saves, loads)

    def finish_moves(self, saved: tuple[bytes, ...] = ()) -> None:
        """The step has been made, and with it the moves of its plan; `saved` are the bytes that it read."""
        for copy in self.copies.done():
            self._release(copy.group, copy.source)
        if self._offload is not None:
            self._offload.done(saved)

    def reset_prefixes(self) -> int:
        """Forgets every prefix, in the store too; returns how many blocks of memory that were.

        Requests keep what they hold.
        """
        if self._offload is not None:
            self._offload.clear()
        return self._prefixes.reset()

    # ---- prefixes

    def _open(self, key: PrefixKey) -> BlockTable:
        return BlockTable(self.pool, self._prefixes.open(key), self._groups)

    def _shares(self, table: BlockTable) -> bool:
        return self._prefix_caching or table.root.key.parent_id is not None

    def _usable(self, node: PrefixNode) -> PrefixNode:
        """How far a known prefix can be taken over in every group."""
        while True:
            end = node
            for group in self._groups:
                end = group.usable(end)
            if end is node:
                return end
            node = end

    def _want(self, table: BlockTable, node: PrefixNode) -> None:
        wanted = table.node.standing()
        table.node = node
        if table.is_waiting and wanted is node:
            return
        if table.is_waiting:
            self._prefixes.unwant(wanted)
        table.is_waiting = True
        self._prefixes.want(node)
        for group in self._groups:
            group.touch(node)

    def _take_over(self, table: BlockTable, match: PrefixMatch) -> None:
        """The request holds its prefix instead of wanting it."""
        if table.is_waiting:
            self._prefixes.unwant(table.node.standing())
            table.is_waiting = False
        match.node.num_uses += 1
        if match.partial is not None:
            match.partial.num_uses += 1
        table.node = match.node

    def _forget_tail(self, table: BlockTable) -> None:
        if table.tail is not None and not table.tail.removed:
            self._prefixes.forget(table.tail)
        table.tail = None

    def _next_publish(self, table: BlockTable, num_computed_tokens: int) -> int:
        """How many tokens will be computed when the next block has filled, if anything is to be done then."""
        if not self._shares(table) and not self._groups:
            return NEVER
        return (num_computed_tokens // BLOCK_TOKENS + 1) * BLOCK_TOKENS

    # ---- the store

    def save_all(self) -> Iterator[tuple[BlockAddress, ...]]:
        """Steps that save everything known: what each has to save. Each must be made before the next is asked for."""
        if self._offload is None:
            return
        nodes = list(islice(self._prefixes.nodes(), self._offload.max_blocks))
        while nodes:
            # The beginnings last: what came last stays longest.
            for node in reversed(nodes[-MAX_SAVES_PER_STEP:]):
                self._save(node)
            del nodes[-MAX_SAVES_PER_STEP:]
            yield self.start_moves().saves
            self._offload.flush()

    def close_store(self) -> None:
        """Waits until what was saved has been written."""
        if self._offload is not None:
            self._offload.close()

    def _save(self, node: PrefixNode) -> None:
        """Whole blocks only: a partial one is computed again in no time."""
        if self._offload is None or len(node.tokens) < BLOCK_BYTES or self._is_awaited(_block_of(node)):
            return
        self._offload.plan_save(digest_of(node), self._prefixes.blocks_of(node))

    def _load(self, offload: Offload, table: BlockTable, tokens: bytes) -> tuple[PrefixNode, bytes, bool]:
        """Brings back what the store has of `tokens` after the table's node; like `PrefixCache.descend`.

        What is brought back belongs to nobody, but is wanted by the table's request.
        """
        node, digest = table.node, digest_of(table.node)
        held: list[list[int | None]] = []
        is_pending = False
        while len(block := tokens[:BLOCK_BYTES]) == BLOCK_BYTES and block not in node.children:
            digest = next_digest(digest, block)
            if not offload.has(digest):
                break
            if not offload.may_load:
                is_pending = True
                break
            parts = offload.fetch(digest)
            block_ids = None if parts is None else self._allocate_for(parts)
            if parts is None or block_ids is None:
                break
            offload.plan_load(parts, block_ids)
            node = self._prefixes.know(node, block, block_ids)
            node.digest = digest
            held.append(block_ids)
            tokens = tokens[BLOCK_BYTES:]
        self._want(table, node)
        for block_ids in reversed(held):
            self._let_go(block_ids)
        if held:
            self._prefixes.touch(node)
        return node, tokens, is_pending

    def _allocate_for(self, parts: Parts) -> list[int | None] | None:
        """A block for each part there is, if there is room without what other waiting requests want."""
        if parts[0] is None or not self.make_room(1, spare_wanted=True):
            return None
        pools = (self.pool, *(group.pool for group in self._groups))
        return [None if part is None else pool.allocate(1)[0] for pool, part in zip(pools, parts, strict=True)]

    # ---- blocks of every group

    def _is_available(self, num_new: int, num_spare: int) -> bool:
        """Whether `num_new` blocks can be had, and `num_spare` after that, but no more of these than windows reach."""
        return num_new + num_spare <= self.num_available and all(
            num_new + group.num_spare(num_spare) <= group.num_available for group in self._groups
        )

    def _hold(self, node: PrefixNode | None) -> list[int]:
        """Holds the block of a node in each group, and gives these."""
        if node is None:
            return []
        held = [block_id for block_id in self._prefixes.blocks_of(node) if block_id is not None]
        self._acquire(held)
        return held

    def _acquire(self, block_ids: Sequence[int]) -> None:
        """One more holder for a block of each group."""
        self.pool.acquire(block_ids[:1])
        for group, block_id in zip(self._groups, block_ids[1:], strict=True):
            group.acquire((block_id,))

    def _let_go(self, block_ids: Sequence[int | None]) -> None:
        for group, block_id in enumerate(block_ids):
            if block_id is not None:
                self._release(group, block_id)

    def _release(self, group: int, block_id: int) -> None:
        if group > 0:
            self._groups[group - 1].release((block_id,))
            return
        self.pool.release((block_id,))
        self._prefixes.offer_block(block_id)

    def _plan_copies(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """From each group's source, which is held until the copy has been made, to its destination."""
        for group, (source, destination) in enumerate(zip(sources, destinations, strict=True)):
            self.copies.plan(BlockCopy(source, destination, group))

    def _cancel_copies(self, table: BlockTable) -> None:
        """What was to be copied into the blocks of a request that leaves is not wanted any more."""
        if not self.copies.awaited:
            return
        held = [set(table.block_ids), *(set(blocks.held) for blocks in table.window_blocks)]
        for copy in self.copies.cancel(held):
            self._release(copy.group, copy.source)

    def _is_awaited(self, block_id: int) -> bool:
        """Whether something is yet to be copied or loaded into this block of the first group."""
        if self._offload is not None and self._offload.is_awaited(block_id):
            return True
        return any(copy.destination == block_id and copy.group == 0 for copy in self.copies.awaited)

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Raises `EngineError` unless every block has as many references as holders, among `tables` and copies.

        `tables` are all that are open and hold something. Checks the prefix tree as well.
        """
        self.pool.check_integrity()
        holders = [Counter[int]() for _ in range(1 + len(self._groups))]
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
        for group, counts in zip(self._groups, holders[1:], strict=True):
            group.check_integrity(counts, nodes)


def _block_of(node: PrefixNode) -> int:
    assert node.block_id is not None
    return node.block_id
