"""Layer groups beside the first: their own blocks, of which a sliding window needs only the last few.

The first group of a model's layers sees everything, and the prefix tree is about its blocks. A group of layers whose
queries see `window` positions keeps blocks for the same tokens in a pool of its own, and gives a block back once no
token to come can see it. With a window of 40 and 100 tokens computed:

    block          0     1     2     3     4     5     6
    tokens         0..   16..  32..  48..  64..  80..  96..99
    first group    held  held  held  held  held  held  held
    window group   given back ------->     held  held  held      token 100 sees 61..100

A block given back stays known, as that of its node in the tree, until another needs it. So a prefix can be taken over
only up to a node behind which all blocks that the window reaches are still known: `usable`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from octavo.config import BLOCK_TOKENS
from octavo.errors import EngineError
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.prefix_tree import PrefixNode

NO_BLOCK = 0  # stands in block tables where nothing is read any more


class WindowBlocks:
    """One request's blocks in a window group: those before index `first` have been given back."""

    __slots__ = ("block_ids", "first")

    def __init__(self) -> None:
        self.block_ids: list[int] = []
        self.first = 0

    @property
    def held(self) -> list[int]:
        return self.block_ids[self.first :]

    def held_at(self, index: int) -> int | None:
        return self.block_ids[index] if index >= self.first else None


class WindowGroup:
    """`num_blocks` blocks of layers whose queries see the last `window` positions, themselves included; None: all."""

    def __init__(self, num_blocks: int, window: int | None) -> None:
        self.pool = BlockPool(num_blocks)
        self._window = window
        self._known: dict[PrefixNode, int] = {}
        self._nodes: dict[int, PrefixNode] = {}
        self._cached: OrderedDict[PrefixNode, int] = OrderedDict()  # known and not held, least recently used first

    @property
    def num_available(self) -> int:
        return self.pool.num_free + len(self._cached)

    def num_spare(self, num_blocks: int) -> int:
        """How many blocks at a time a request needs that is to grow by `num_blocks` in the first group."""
        return num_blocks if self._window is None else min(num_blocks, -(-self._window // BLOCK_TOKENS) + 1)

    def first_visible(self, position: int) -> int:
        """The index of the first block that the token at `position`, or a later one, sees."""
        return 0 if self._window is None else max(0, position - self._window + 1) // BLOCK_TOKENS

    # ---- one request's blocks

    def append(self, blocks: WindowBlocks, count: int) -> tuple[int, ...]:
        new_block_ids = self.pool.allocate(count)
        blocks.block_ids += new_block_ids
        return tuple(new_block_ids)

    def share(self, blocks: WindowBlocks, node: PrefixNode) -> None:
        """An empty table takes over what the token after the prefix that ends in `node` sees; `node` is usable."""
        blocks.first = self.first_visible(node.depth * BLOCK_TOKENS)
        shared: list[int] = []
        while node.depth > blocks.first:
            shared.append(self._known[node])
            assert node.parent is not None
            node = node.parent
        shared.reverse()
        self.acquire(shared)
        blocks.block_ids = [NO_BLOCK] * blocks.first + shared

    def fork(self, blocks: WindowBlocks, twin: WindowBlocks, num_full: int) -> None:
        """An empty table takes over the first `num_full` blocks of another, as far as that still holds them."""
        twin.first = min(blocks.first, num_full)
        twin.block_ids = blocks.block_ids[:num_full]
        self.acquire(twin.held)

    def give_back(self, blocks: WindowBlocks, num_computed_tokens: int) -> None:
        """Lets go of what no token from position `num_computed_tokens` on sees."""
        first = min(self.first_visible(num_computed_tokens), len(blocks.block_ids))
        if first > blocks.first:
            self.release(blocks.block_ids[blocks.first : first])
            blocks.block_ids[blocks.first : first] = [NO_BLOCK] * (first - blocks.first)
            blocks.first = first

    def leave(self, blocks: WindowBlocks) -> None:
        self.release(reversed(blocks.held))
        blocks.block_ids = []
        blocks.first = 0

    # ---- holders

    def acquire(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            if self.pool.references(block_id) == 0:
                self._cached.pop(self._nodes[block_id])
            self.pool.acquire((block_id,))

    def release(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.pool.release((block_id,))
            if self.pool.references(block_id) == 0 and block_id in self._nodes:
                self._cached[self._nodes[block_id]] = block_id

    def make_room(self, num_blocks: int) -> bool:
        """Forgets what nobody holds, least recently used first, until `num_blocks` are free; False if not enough."""
        while self.pool.num_free < num_blocks:
            if not self._cached:
                return False
            self.forget(next(iter(self._cached)))
        return True

    # ---- what is known

    def block_of(self, node: PrefixNode) -> int | None:
        return self._known.get(node)

    def know(self, node: PrefixNode, block_id: int) -> None:
        """The tokens of `node` lie in this block, which is held, unless they are known to lie in another."""
        if node not in self._known and block_id not in self._nodes:
            self.pool.keep(block_id)
            self._known[node] = block_id
            self._nodes[block_id] = node

    def touch(self, node: PrefixNode) -> None:
        """Somebody waits who will take over the prefix that ends in `node`: what that needs is to go last."""
        first = self.first_visible(node.depth * BLOCK_TOKENS)
        while node.depth > first:
            if node in self._cached:
                self._cached.move_to_end(node)
            assert node.parent is not None
            node = node.parent

    def forget(self, node: PrefixNode) -> None:
        block_id = self._known.pop(node, None)
        if block_id is not None:
            del self._nodes[block_id]
            self._cached.pop(node, None)
            self.pool.drop(block_id)

    def usable(self, node: PrefixNode) -> PrefixNode:
        """The node or its nearest ancestor behind which every block is known that the next token sees."""
        end, num_known = node, 0
        while node.parent is not None:
            if num_known >= end.depth - self.first_visible(end.depth * BLOCK_TOKENS):
                return end
            if node in self._known:
                num_known += 1
            else:
                end, num_known = node.parent, 0
            node = node.parent
        return end

    def check_integrity(self, holders: dict[int, int], nodes: set[PrefixNode]) -> None:
        """Raises `EngineError` unless blocks have the references of `holders` and only nodes of the tree are known."""
        self.pool.check_integrity()
        if any(self.pool.references(block_id) != holders.get(block_id, 0) for block_id in range(self.pool.num_blocks)):
            raise EngineError("blocks of a window group have other holders than counted")
        if not self._known.keys() <= nodes or self._nodes != {block: node for node, block in self._known.items()}:
            raise EngineError("a window group knows blocks of nodes that are not in the prefix tree")
        cached = {node for node, block_id in self._known.items() if self.pool.references(block_id) == 0}
        if self._cached.keys() != cached or len(cached) != self.pool.num_cached:
            raise EngineError("a window group has lost track of what nobody holds")
