"""The prefix tree: which token prefixes are known, and in which blocks they lie.

A radix tree over token ids with one edge for each block, so that a path from the root spells the tokens of a prompt:

    root ── [ 5 9 2 .. 7 ] ── [ 1 1 8 .. 3 ] ── [ 4 6 6 .. 2 ]
             block 12          block 40     \\
                                            └── [ 4 6 9 .. 0 ] ── [ 3 8 ]       the last block of a request that ended
                                                 block 41          block 7       here may be partial

Whole blocks are found by their tokens; where two prompts part inside a block, `nearest` finds the child that agrees
longest. An edge's tokens are bytes, `TOKEN_BYTES` each: comparing and hashing a block is one operation, not sixteen.

There is a root for each `PrefixKey`. A node without a block is *promised*: a running request is about to compute it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TypeAlias

from octavo.config import BLOCK_TOKENS
from octavo.errors import EngineError
from octavo.request import PrefixKey

TOKEN_TYPE = "i"  # of arrays of token ids
TOKEN_BYTES = array(TOKEN_TYPE).itemsize
BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES

TokenIds: TypeAlias = "array[int]"


class PrefixNode:
    """One block's worth of tokens after those of its ancestors; fewer only in a leaf.

    `depth` counts blocks from the root, this one included. `num_wanted` counts the waiting requests whose known prefix
    ends here. `last_used` and `num_uses` are those of the node and of every descendant that has been removed since.
    """

    __slots__ = (
        "block_id",
        "children",
        "depth",
        "digest",
        "last_used",
        "num_uses",
        "num_wanted",
        "parent",
        "removed",
        "sorted_tokens",
        "ticket",
        "tokens",
    )

    def __init__(self, parent: PrefixNode | None, tokens: bytes, block_id: int | None) -> None:
        self.parent = parent
        self.tokens = tokens
        self.block_id = block_id
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[bytes, PrefixNode] = {}
        self.sorted_tokens: list[bytes] = []  # the keys of `children`
        self.digest: bytes | None = None  # for stores; made when one asks
        self.removed = False
        self.num_wanted = 0
        self.last_used = 0
        self.num_uses = 0
        self.ticket = 0

    @property
    def is_promised(self) -> bool:
        """Somebody is about to compute it."""
        return self.block_id is None and self.parent is not None

    def path(self) -> list[int]:
        """The blocks from the root to here, all of which are computed."""
        block_ids: list[int] = []
        node = self
        while node.parent is not None:
            assert node.block_id is not None
            block_ids.append(node.block_id)
            node = node.parent
        block_ids.reverse()
        return block_ids

    def standing(self) -> PrefixNode:
        """The node itself, or its nearest ancestor that has not been removed."""
        node = self
        while node.removed:
            assert node.parent is not None
            node = node.parent
        return node


class PrefixRoot(PrefixNode):
    """Where the prefixes of one `PrefixKey` begin. Stays while it has children or open block tables."""

    __slots__ = ("key", "num_tables")

    def __init__(self, key: PrefixKey) -> None:
        super().__init__(None, b"", None)
        self.key = key
        self.num_tables = 0


class PrefixTree:
    """All known prefixes. Knows block numbers, but not who holds them."""

    def __init__(self) -> None:
        self._roots: dict[PrefixKey, PrefixRoot] = {}

    def open(self, key: PrefixKey) -> PrefixRoot:
        """The root for `key`, which stays at least until `close`."""
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = PrefixRoot(key)
        root.num_tables += 1
        return root

    def close(self, root: PrefixRoot) -> None:
        root.num_tables -= 1
        self._prune(root)

    def add(self, parent: PrefixNode, tokens: bytes, block_id: int | None) -> PrefixNode:
        """A new child of `parent`, which has no child for these tokens."""
        node = parent.children[tokens] = PrefixNode(parent, tokens, block_id)
        insort(parent.sorted_tokens, tokens)
        return node

    def remove(self, node: PrefixNode) -> PrefixNode:
        """Takes a leaf out; its parent, which is returned, inherits its use and who wants it."""
        parent = node.parent
        assert parent is not None and not node.children
        del parent.children[node.tokens]
        del parent.sorted_tokens[bisect_left(parent.sorted_tokens, node.tokens)]
        node.removed = True
        parent.num_wanted += node.num_wanted
        parent.num_uses += node.num_uses
        parent.last_used = max(parent.last_used, node.last_used)
        if isinstance(parent, PrefixRoot):
            self._prune(parent)
        return parent

    def nodes(self) -> Iterator[PrefixNode]:
        """Every node but the roots, parents first."""
        unvisited: list[PrefixNode] = list(self._roots.values())
        while unvisited:
            node = unvisited.pop()
            if node.parent is not None:
                yield node
            unvisited.extend(node.children.values())

    def check_integrity(self) -> None:
        """Raises `EngineError` unless every edge has the length, order and links that the rest relies on."""
        for root in self._roots.values():
            if not root.children and not root.num_tables:
                raise EngineError(f"the prefix tree has kept an empty root for {root.key}")
        for node in self.nodes():
            parent = node.parent
            assert parent is not None
            if parent.children.get(node.tokens) is not node or node.removed or node.depth != parent.depth + 1:
                raise EngineError(f"the prefix tree links a node of block {node.block_id} wrongly")
            if sorted(node.children) != node.sorted_tokens or not 0 < len(node.tokens) <= BLOCK_BYTES:
                raise EngineError(f"the prefix tree has a node of block {node.block_id} with wrong tokens")
            if node.children and (len(node.tokens) < BLOCK_BYTES):
                raise EngineError(f"the prefix tree continues a partial block, {node.block_id}")

    def _prune(self, root: PrefixRoot) -> None:
        if not root.children and not root.num_tables:
            self._roots.pop(root.key, None)


def nearest(parent: PrefixNode, tokens: bytes) -> tuple[PrefixNode | None, int]:
    """The computed child that agrees with `tokens` longest, and for how many tokens, at least one.

    In a sorted list, what shares the longest beginning with a string stands right before or after its place.
    """
    best: PrefixNode | None = None
    most = 0
    place = bisect_left(parent.sorted_tokens, tokens)
    for neighbour in parent.sorted_tokens[max(0, place - 1) : place + 1]:
        child = parent.children[neighbour]
        count = common_tokens(neighbour, tokens)
        if count > most and child.block_id is not None:
            best, most = child, count
    return best, most


def common_tokens(a: bytes, b: bytes) -> int:
    """How many tokens two runs of tokens have in common at their beginning."""
    length = min(len(a), len(b))
    difference = int.from_bytes(a[:length], "little") ^ int.from_bytes(b[:length], "little")
    if difference == 0:
        return length // TOKEN_BYTES
    lowest_bit = (difference & -difference).bit_length() - 1
    return lowest_bit // (8 * TOKEN_BYTES)
