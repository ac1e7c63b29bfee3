"""How far a known prefix can be taken over when a window group knows only some of its blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.config import BLOCK_TOKENS
from octavo.kvcache.prefix_tree import PrefixNode, PrefixTree
from octavo.kvcache.window_group import WindowBlocks, WindowGroup
from octavo.request import PrefixKey


@given(known=st.lists(st.booleans(), max_size=12), window=st.none() | st.integers(1, 100))
def test_a_prefix_is_usable_where_every_block_is_known_that_the_next_token_sees(
    known: list[bool], window: int | None
) -> None:
    tree, group, blocks = PrefixTree(), WindowGroup(len(known) + 1, window), WindowBlocks()
    chain: list[PrefixNode] = [tree.open(PrefixKey())]
    group.append(blocks, len(known))
    for block_id, is_known in zip(blocks.block_ids, known, strict=True):
        chain.append(tree.add(chain[-1], bytes([len(chain)]) * 4 * BLOCK_TOKENS, block_id))
        if is_known:
            group.know(chain[-1], block_id)

    def is_usable(depth: int) -> bool:
        position = depth * BLOCK_TOKENS
        first = 0 if window is None else max(0, position - window + 1)
        return all(known[seen // BLOCK_TOKENS] for seen in range(first, position))

    expected = max(depth for depth in range(len(chain)) if is_usable(depth))
    assert group.usable(chain[-1]) is chain[expected]


def test_what_a_waiting_request_will_take_over_goes_last() -> None:
    tree, group = PrefixTree(), WindowGroup(6, 17)
    root = tree.open(PrefixKey())
    nodes = []
    for first in range(3):  # three prefixes of two blocks each
        blocks = WindowBlocks()
        group.append(blocks, 2)
        parent: PrefixNode = root
        for index, block_id in enumerate(blocks.block_ids):
            parent = tree.add(parent, bytes([first, index]) * 2 * BLOCK_TOKENS, block_id)
            group.know(parent, block_id)
        nodes.append(parent)
        group.leave(blocks)
    group.touch(nodes[0])
    assert group.make_room(4)
    assert group.usable(nodes[0]) is nodes[0]
    assert [group.block_of(node) for node in nodes[1:]] == [None, None]
