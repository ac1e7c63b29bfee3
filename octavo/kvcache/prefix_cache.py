"""What is known to lie in the blocks: the prefix tree, kept in step with the pool and with what may be evicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.config import EvictionPolicy
from octavo.errors import EngineError
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.eviction import EvictionQueue
from octavo.kvcache.prefix_tree import BLOCK_BYTES, PrefixNode, PrefixRoot, PrefixTree
from octavo.kvcache.window_group import WindowGroup
from octavo.request import PrefixKey


class PrefixCache:
    """Every node of the tree stands for one block, or for one that a running request has promised to compute.

    A block that a node stands for is kept when its last holder goes. It is evicted, on demand, once it is a leaf and
    nobody holds it; the blocks of window groups for the same tokens go with it.
    """

    def __init__(self, pool: BlockPool, groups: Sequence[WindowGroup], policy: EvictionPolicy) -> None:
        self.num_evicted = 0
        self._pool = pool
        self._groups = groups
        self._tree = PrefixTree()
        self._nodes: dict[int, PrefixNode] = {}  # by block
        self._evictable = EvictionQueue(policy, self._is_evictable)
        self._clock = 0

    def __len__(self) -> int:
        """How many blocks are known."""
        return len(self._nodes)

    def open(self, key: PrefixKey) -> PrefixRoot:
        return self._tree.open(key)

    def close(self, root: PrefixRoot) -> None:
        self._tree.close(root)

    # ---- what is known

    def descend(self, node: PrefixNode, tokens: bytes) -> tuple[PrefixNode, bytes, bool]:
        """Follows whole, computed blocks of `tokens` from `node` on.

        Returns where that ends, the tokens that come next there, and whether the next block is promised.
        """
        place = 0
        while len(block := tokens[place : place + BLOCK_BYTES]) == BLOCK_BYTES:
            child = node.children.get(block)
            if child is None:
                break
            if child.is_promised:
                return node, tokens[place:], True
            node = child
            place += BLOCK_BYTES
        return node, tokens[place:], False

    def know(self, parent: PrefixNode, tokens: bytes, block_ids: Sequence[int | None]) -> PrefixNode:
        """The child of `parent` for `tokens`: what has no block yet, in each group, lies in this one, which is held."""
        block_id = block_ids[0]
        assert block_id is not None
        child = parent.children.get(tokens)
        if child is None:
            child = self._tree.add(parent, tokens, block_id)
        elif child.is_promised:
            child.block_id = block_id
        if child.block_id == block_id:
            self._pool.keep(block_id)
            self._nodes[block_id] = child
        for group, window_block_id in zip(self._groups, block_ids[1:], strict=True):
            if window_block_id is not None:
                group.know(child, window_block_id)
        return child

    def blocks_of(self, node: PrefixNode) -> list[int | None]:
        """Where the node's tokens lie in each group."""
        return [node.block_id, *(group.block_of(node) for group in self._groups)]

    def promise(self, node: PrefixNode, tokens: bytes) -> PrefixNode | None:
        """Adds the full blocks of `tokens`, which are about to be computed; the deepest that was not there."""
        promised: PrefixNode | None = None
        for place in range(0, len(tokens) - BLOCK_BYTES + 1, BLOCK_BYTES):
            block = tokens[place : place + BLOCK_BYTES]
            child = node.children.get(block)
            if child is None:
                child = promised = self._tree.add(node, block, None)
            node = child
        return promised

    def withdraw(self, promised: PrefixNode) -> None:
        """Takes back what was promised up to this node and has not been computed."""
        node = promised
        while node.is_promised and not node.children and not node.removed:
            node = self._tree.remove(node)
            self.offer(node)

    def forget(self, node: PrefixNode) -> None:
        """Takes a leaf out of the tree; its block is free, or its holders' alone."""
        parent = self._tree.remove(node)
        if node.block_id is not None:
            del self._nodes[node.block_id]
            self._pool.drop(node.block_id)
        for group in self._groups:
            group.forget(node)
        self.offer(parent)

    def reset(self) -> int:
        """Forgets everything; returns how many blocks that were."""
        num_blocks = len(self._nodes)
        for node in reversed(list(self._tree.nodes())):
            self.forget(node)
        return num_blocks

    # ---- what may go

    def want(self, node: PrefixNode) -> None:
        """A waiting request will hit this prefix."""
        node.num_wanted += 1
        if node.num_wanted == 1:
            self.offer(node)

    def unwant(self, node: PrefixNode) -> None:
        node.num_wanted -= 1
        if node.num_wanted == 0:
            self.offer(node)

    def touch(self, node: PrefixNode) -> None:
        """The prefix that ends here has been in use until now."""
        self._clock += 1
        node.last_used = self._clock
        self.offer(node)

    def offer(self, node: PrefixNode) -> None:
        """Queues the node for eviction if it may go."""
        if self._is_evictable(node):
            self._evictable.push(node)

    def nodes(self) -> Iterator[PrefixNode]:
        """Everything known, parents first."""
        return (node for node in self._tree.nodes() if node.block_id is not None)

    def offer_block(self, block_id: int) -> None:
        """Queues what lies in a block that has one holder less."""
        node = self._nodes.get(block_id)
        if node is not None:
            self.offer(node)

    def next_to_go(self, *, spare_wanted: bool) -> PrefixNode | None:
        """What is to be evicted next, if anything may go; with `spare_wanted`, nothing that a waiting request wants."""
        return self._evictable.pop(spare_wanted=spare_wanted)

    def evict(self, node: PrefixNode) -> None:
        """Makes its block free."""
        self.forget(node)
        self.num_evicted += 1

    def _is_evictable(self, node: PrefixNode) -> bool:
        block_id = node.block_id
        return block_id is not None and not node.children and not node.removed and self._pool.references(block_id) == 0

    def check_integrity(self) -> set[PrefixNode]:
        """Raises `EngineError` unless tree, kept blocks and eviction queue agree; returns the nodes with a block."""
        self._tree.check_integrity()
        nodes = {node.block_id: node for node in self._tree.nodes() if node.block_id is not None}
        kept = {block_id for block_id in range(self._pool.num_blocks) if self._pool.is_kept(block_id)}
        if nodes != self._nodes or kept != nodes.keys():
            raise EngineError("the prefix tree knows other blocks than are kept")
        if any(self._is_evictable(node) and node not in self._evictable for node in nodes.values()):
            raise EngineError("a cached prefix can never be evicted")
        return set(nodes.values())
