"""Blocks on their way from the KV cache to a store, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from hashlib import blake2b

from octavo.kvcache.block_store import DIGEST_BYTES, BlockStore, Parts
from octavo.kvcache.prefix_tree import PrefixNode, PrefixRoot
from octavo.step import BlockAddress, BlockLoad

# A step waits for these.
MAX_SAVES_PER_STEP = 64
MAX_LOADS_PER_STEP = 64


class Offload:
    """What the next step must save and load, and what comes of it.

    Saves of a step that fails are lost. Loads of a step that fails are part of the next one again, like copies.
    """

    def __init__(self, store: BlockStore) -> None:
        self.num_saved = 0
        self.num_loaded = 0
        self._store = store
        self._saves: list[tuple[bytes, tuple[BlockAddress | None, ...]]] = []
        self._saves_under_way: list[tuple[bytes, tuple[BlockAddress | None, ...]]] = []
        self._loads: list[BlockLoad] = []
        self._loads_under_way: tuple[BlockLoad, ...] = ()

    @property
    def may_load(self) -> bool:
        """Whether the next step has room for another load."""
        return len(self._loads) < MAX_LOADS_PER_STEP

    @property
    def max_blocks(self) -> int:
        """As many blocks fit into the store."""
        return self._store.max_blocks

    def clear(self) -> None:
        """Forgets what has been saved, and what was about to be."""
        self._saves.clear()
        self._store.clear()

    def flush(self) -> None:
        """Waits until what was saved has been written."""
        self._store.flush()

    def has(self, digest: bytes) -> bool:
        return digest in self._store

    def fetch(self, digest: bytes) -> Parts | None:
        return self._store.get(digest)

    def plan_load(self, parts: Parts, block_ids: list[int | None]) -> None:
        """Each group's part goes to its block, where there is one."""
        for group, (pages, block_id) in enumerate(zip(parts, block_ids, strict=True)):
            if pages is not None and block_id is not None:
                self._loads.append(BlockLoad(BlockAddress(block_id, group), pages))
        self.num_loaded += 1

    def plan_save(self, digest: bytes, block_ids: Sequence[int | None]) -> None:
        """Unless the store has it, or the next step has enough to save."""
        if len(self._saves) < MAX_SAVES_PER_STEP and digest not in self._store:
            addresses = tuple(None if b is None else BlockAddress(b, g) for g, b in enumerate(block_ids))
            self._saves.append((digest, addresses))

    def is_awaited(self, block_id: int) -> bool:
        """Whether something is yet to be loaded into this block of the first group."""
        address = BlockAddress(block_id)
        return any(load.address == address for load in (*self._loads_under_way, *self._loads))

    def start(self) -> tuple[tuple[BlockAddress, ...], tuple[BlockLoad, ...]]:
        """What the next step must save and load."""
        self._saves_under_way, self._saves = self._saves, []
        self._loads_under_way += tuple(self._loads)
        self._loads.clear()
        saves = [address for _, addresses in self._saves_under_way for address in addresses if address is not None]
        return tuple(saves), self._loads_under_way

    def done(self, saved: tuple[bytes, ...]) -> None:
        """The step has been made; `saved` are the bytes it read."""
        pages = iter(saved)
        for digest, addresses in self._saves_under_way:
            self._store.put(digest, tuple(None if address is None else next(pages) for address in addresses))
        self.num_saved += len(self._saves_under_way)
        self._saves_under_way = []
        self._loads_under_way = ()

    def close(self) -> None:
        self._store.close()


def digest_of(node: PrefixNode) -> bytes:
    """Of all tokens from the root to here, and of the root's key. Costs O(nodes whose digest is not known yet)."""
    chain: list[PrefixNode] = []
    while node.digest is None and node.parent is not None:
        chain.append(node)
        node = node.parent
    digest = node.digest or _root_digest(node)
    for descendant in reversed(chain):
        digest = descendant.digest = next_digest(digest, descendant.tokens)
    return digest


def next_digest(digest: bytes, tokens: bytes) -> bytes:
    """Of a prefix with one more block of tokens."""
    return blake2b(digest + tokens, digest_size=DIGEST_BYTES).digest()


def _root_digest(root: PrefixNode) -> bytes:
    assert isinstance(root, PrefixRoot)
    root.digest = blake2b(json.dumps(astuple(root.key)).encode(), digest_size=DIGEST_BYTES).digest()
    return root.digest
