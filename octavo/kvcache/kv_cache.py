"""The KV cache as the scheduler sees it: block tables that grow, share prefixes, fork and end.

Blocks come from the pool; what is known to lie in them is written in the prefix tree; what nobody holds any more stays
known until the eviction queue gives it up. A prompt takes over the longest known prefix:

    prompt          [ block 0 ][ block 1 ][ block 2 ][ blo
    known           [ same    ][ same    ][ same, othe ]
    taken over        shared     shared     copied: the first 4 tokens are the same, the rest is overwritten
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from octavo.config import BLOCK_TOKENS, EvictionPolicy
from octavo.errors import EngineError
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.block_table import NEVER, BlockTable
from octavo.kvcache.copies import BlockCopies
from octavo.kvcache.eviction import EvictionQueue
from octavo.kvcache.prefix_tree import BLOCK_BYTES, PrefixNode, PrefixTree, TokenIds, nearest
from octavo.request import PrefixKey


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How much of a request's tokens is known: `num_blocks` whole blocks, then the beginning of the block `partial`.

    `is_pending`: a running request is about to compute the block that comes next.
    """

    num_blocks: int
    partial: PrefixNode | None
    num_partial_tokens: int
    is_pending: bool

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * BLOCK_TOKENS + self.num_partial_tokens

    def whole_blocks(self) -> PrefixMatch:
        """Less, but without a block to copy from, which must be held for a step beside the copy."""
        return replace(self, partial=None, num_partial_tokens=0)


_NO_MATCH = PrefixMatch(0, None, 0, False)


class KvCache:
    """`num_blocks` blocks, the prefixes known to lie in them, and the block tables of requests.

    A table lives from `open` to `close`. While its request waits it holds nothing, but wants the prefix that `match`
    found; `enter` gives it blocks, `publish` makes known what has been computed in them, `leave` takes them away again.
    Every call costs at most O(tokens it concerns). With `prefix_caching` off, nothing is ever known.
    """

    def __init__(
        self,
        num_blocks: int,
        num_groups: int = 1,
        *,
        prefix_caching: bool = True,
        eviction_policy: EvictionPolicy = "lru",
    ) -> None:
        self.pool = BlockPool(num_blocks, num_groups)
        self.copies = BlockCopies(self.pool)
        self.num_evicted = 0
        self._prefix_caching = prefix_caching
        self._tree = PrefixTree()
        self._nodes: dict[int, PrefixNode] = {}  # by the block that lies in them
        self._evictable = EvictionQueue(eviction_policy, self._is_evictable)
        self._clock = 0

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that are free, or cached and may be given up."""
        return self.pool.num_free + self.pool.num_cached

    # ---- the life of a table

    def open(self, key: PrefixKey) -> BlockTable:
        return BlockTable(self.pool, self._tree.open(key))

    def match(self, table: BlockTable, token_ids: TokenIds, max_tokens: int) -> PrefixMatch:
        """What is known of the first `max_tokens` tokens of a waiting request; the rest is computed in any case.

        From now on the request wants this prefix: it is not evicted for other waiting requests. Asking again costs no
        more than what has become known since.
        """
        if not self._prefix_caching:
            return _NO_MATCH
        node = table.node.standing()
        rest = token_ids[node.depth * BLOCK_TOKENS : max_tokens].tobytes()
        place, is_pending = 0, False
        while len(tokens := rest[place : place + BLOCK_BYTES]) == BLOCK_BYTES:
            child = node.children.get(tokens)
            if child is None:
                break
            if child.is_promised:
                is_pending = True
                break
            node = child
            place += BLOCK_BYTES
        self._want(table, node)
        partial, num_partial_tokens = nearest(node, tokens)
        return PrefixMatch(node.depth, partial, num_partial_tokens, is_pending)

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
        node, partial = table.node.standing(), match.partial
        table.share(node.path())
        if partial is not None:
            self.pool.acquire((_block_of(partial),))
        num_new = table.num_missing(num_tokens)
        fits = num_new + num_spare_blocks <= self.num_available and self.make_room(num_new, spare_wanted=spare_wanted)
        if fits:
            table.append(num_new)
            self._take_over(table, node, match)
            self._promise(table, token_ids)
        else:
            table.release()
            self._offer(node)
        if partial is not None:
            self.pool.release((_block_of(partial),))
            self._offer(partial)
        return fits

    def make_room(self, num_blocks: int, *, spare_wanted: bool = False) -> bool:
        """Evicts until `num_blocks` are free; False if there is not enough to evict."""
        while self.pool.num_free < num_blocks:
            node = self._evictable.pop(spare_wanted=spare_wanted)
            if node is None:
                return False
            self._forget(node)
            self.num_evicted += 1
        return True

    def publish(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> None:
        """Makes known the blocks that have filled, when `num_computed_tokens` has reached `table.publish_at`."""
        self._forget_tail(table)
        node = table.node
        if node.removed:  # another's, with the same tokens, which has been evicted
            table.publish_at = NEVER
            return
        end = num_computed_tokens // BLOCK_TOKENS * BLOCK_TOKENS
        rest = token_ids[node.depth * BLOCK_TOKENS : end].tobytes()
        for place in range(0, len(rest), BLOCK_BYTES):
            node = self._know(node, rest[place : place + BLOCK_BYTES], table.block_ids[node.depth])
        table.node = node
        table.publish_at = (node.depth + 1) * BLOCK_TOKENS

    def publish_tail(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> None:
        """Makes known the last, partial block as it is now; it may be written on, since others only copy it."""
        self._forget_tail(table)
        node, num_full_tokens = table.node, table.node.depth * BLOCK_TOKENS
        is_partial = num_full_tokens < num_computed_tokens < num_full_tokens + BLOCK_TOKENS
        if not self._prefix_caching or node.removed or not is_partial:
            return
        tokens = token_ids[num_full_tokens:num_computed_tokens].tobytes()
        block_id = table.block_ids[node.depth]
        if tokens not in node.children and not self.copies.is_awaited(block_id):
            table.tail = self._know(node, tokens, block_id)

    def leave(self, table: BlockTable, token_ids: TokenIds, num_computed_tokens: int) -> None:
        """Takes every block away. What was computed in them stays known, until it is evicted."""
        if not table.block_ids:
            return
        self._withdraw(table)
        self.publish_tail(table, token_ids, num_computed_tokens)
        table.release()
        self._clock += 1
        for node in (table.tail, table.node):
            if node is not None:
                node.last_used = self._clock
                self._offer(node)
        table.tail = None
        table.node = table.root
        table.publish_at = NEVER

    def close(self, table: BlockTable) -> None:
        """The request is gone; its table holds nothing any more."""
        if table.is_waiting:
            self._unwant(table.node.standing())
        self._tree.close(table.root)

    def fork(self, table: BlockTable, num_computed_tokens: int) -> BlockTable:
        """Another table for the same tokens: full blocks are shared, the partial one is copied before the next step.

        Needs one free block if there is a partial one.
        """
        num_full, num_partial_tokens = divmod(num_computed_tokens, BLOCK_TOKENS)
        twin = self.open(table.root.key)
        twin.share(table.block_ids[:num_full])
        if num_partial_tokens:
            twin.append(1)
            self.copies.plan(table.block_ids[num_full], twin.block_ids[num_full])
        twin.node, twin.publish_at = table.node, table.publish_at
        return twin

    def finish_copies(self) -> None:
        """The step has been made, and with it the copies of its plan."""
        for block_id in self.copies.done():
            node = self._nodes.get(block_id)
            if node is not None:
                self._offer(node)

    def reset_prefixes(self) -> int:
        """Forgets every prefix; returns how many blocks that were. Requests keep what they hold."""
        num_blocks = len(self._nodes)
        for node in reversed(list(self._tree.nodes())):
            if node.is_promised:
                self._tree.remove(node)
            else:
                self._forget(node)
        return num_blocks

    # ---- what is known

    def _know(self, parent: PrefixNode, tokens: bytes, block_id: int) -> PrefixNode:
        """The child for `tokens`; if it has no block yet, these lie in `block_id`."""
        child = parent.children.get(tokens)
        if child is None:
            child = self._tree.add(parent, tokens, block_id)
        elif child.is_promised:
            child.block_id = block_id
        else:
            return child
        self.pool.keep(block_id)
        self._nodes[block_id] = child
        return child

    def _forget(self, node: PrefixNode) -> None:
        """Takes a leaf out of the tree; its block is free, or its holders' alone."""
        block_id = _block_of(node)
        del self._nodes[block_id]
        self._offer(self._tree.remove(node))
        self.pool.drop(block_id)

    def _forget_tail(self, table: BlockTable) -> None:
        if table.tail is not None and not table.tail.removed:
            self._forget(table.tail)
        table.tail = None

    def _take_over(self, table: BlockTable, node: PrefixNode, match: PrefixMatch) -> None:
        """The request holds its prefix instead of wanting it."""
        if table.is_waiting:
            self._unwant(node)
            table.is_waiting = False
        node.num_uses += 1
        if match.partial is not None:
            match.partial.num_uses += 1
            match.partial.last_used = self._clock
            self.copies.plan(_block_of(match.partial), table.block_ids[match.num_blocks])
        if self._prefix_caching:
            table.node = node
            table.publish_at = (node.depth + 1) * BLOCK_TOKENS

    def _promise(self, table: BlockTable, token_ids: TokenIds) -> None:
        """Adds the full blocks that the request is about to compute to the tree, without a block yet."""
        if not self._prefix_caching:
            return
        node = table.node
        rest = token_ids[node.depth * BLOCK_TOKENS :].tobytes()
        for place in range(0, len(rest) - BLOCK_BYTES + 1, BLOCK_BYTES):
            tokens = rest[place : place + BLOCK_BYTES]
            child = node.children.get(tokens)
            if child is None:
                child = table.promised = self._tree.add(node, tokens, None)
            node = child

    def _withdraw(self, table: BlockTable) -> None:
        """Takes back what was promised and has not been computed."""
        node, table.promised = table.promised, None
        while node is not None and node.is_promised and not node.children and not node.removed:
            node = self._tree.remove(node)
            self._offer(node)

    # ---- who wants it, and what may go

    def _want(self, table: BlockTable, node: PrefixNode) -> None:
        wanted = table.node.standing()
        table.node = node
        if table.is_waiting:
            if wanted is node:
                return
            self._unwant(wanted)
        table.is_waiting = True
        node.num_wanted += 1
        if node.num_wanted == 1:
            self._offer(node)

    def _unwant(self, node: PrefixNode) -> None:
        node.num_wanted -= 1
        if node.num_wanted == 0:
            self._offer(node)

    def _offer(self, node: PrefixNode) -> None:
        """Queues the node for eviction if it may go."""
        if self._is_evictable(node):
            self._evictable.push(node)

    def _is_evictable(self, node: PrefixNode) -> bool:
        block_id = node.block_id
        return block_id is not None and not node.children and not node.removed and self.pool.references(block_id) == 0

    # ---- checks

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Raises `EngineError` unless every block has as many references as holders among `tables` (all that are open)
        and copies, and the tree, the kept blocks and the eviction queue agree.
        """
        self.pool.check_integrity()
        self._tree.check_integrity()
        holders = Counter(self.copies.held)
        for table in tables:
            holders.update(table.block_ids)
            if len(set(table.block_ids)) != len(table.block_ids):
                raise EngineError("a block table has a block twice")
        if any(self.pool.references(block_id) != holders[block_id] for block_id in range(self.num_blocks)):
            raise EngineError("KV blocks have other holders than counted")
        nodes = {node.block_id: node for node in self._tree.nodes() if node.block_id is not None}
        kept = {block_id for block_id in range(self.num_blocks) if self.pool.is_kept(block_id)}
        if nodes != self._nodes or kept != nodes.keys():
            raise EngineError("the prefix tree knows other blocks than are kept")
        if any(self._is_evictable(node) and node not in self._evictable for node in nodes.values()):
            raise EngineError("a cached prefix can never be evicted")


def _block_of(node: PrefixNode) -> int:
    assert node.block_id is not None
    return node.block_id
