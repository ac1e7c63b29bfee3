"""The prefixes that waiting requests will take over: they are not evicted for other waiting requests."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.kvcache.block_table import BlockTable
from octavo.kvcache.prefix_cache import PrefixCache
from octavo.kvcache.prefix_tree import PrefixNode
from octavo.kvcache.window_group import WindowGroup


class WantedPrefixes:
    """A request wants one prefix at most: that which ends in its table's node, while the table `is_waiting`."""

    def __init__(self, prefixes: PrefixCache, windows: Sequence[WindowGroup]) -> None:
        self._prefixes = prefixes
        self._windows = windows

    def want(self, table: BlockTable, node: PrefixNode) -> None:
        """From now on the table's request wants the prefix that ends in `node`."""
        wanted = table.node.standing()
        table.node = node
        if table.is_waiting and wanted is node:
            return
        if table.is_waiting:
            self._prefixes.unwant(wanted)
        table.is_waiting = True
        self._prefixes.want(node)
        for group in self._windows:
            group.touch(node)

    def give_up(self, table: BlockTable) -> None:
        """The request wants nothing any more: it holds its prefix, or is gone."""
        if table.is_waiting:
            self._prefixes.unwant(table.node.standing())
            table.is_waiting = False
