"""Which layers of a model share a block table in the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from octavo.backends.native import abi
from octavo.backends.native.library import KvCache, kv_page_bytes
from octavo.errors import UnsupportedModelError
from octavo.graph.ops import KvLayer
from octavo.step import KvGroup

KV_DTYPES = {"bf16": 0, "int8": 1}


class KvLayout:
    """The layers of a model in groups: those of one shape that see equally far share a block table.

    Layers that see everything come first, then windows from the widest to the narrowest. All are stored as `dtype`.
    """

    def __init__(self, layers: Sequence[KvLayer], dtype: Literal["bf16", "int8"] = "bf16") -> None:
        layers = sorted(layers, key=lambda layer: layer.index)
        if [layer.index for layer in layers] != list(range(len(layers))):
            raise UnsupportedModelError(f"KV layers are numbered {[layer.index for layer in layers]}, not from 0 on")
        kinds = sorted({_kind_of(layer) for layer in layers}, reverse=True)
        self._dtype = KV_DTYPES[dtype]
        self._layer_groups = [kinds.index(_kind_of(layer)) for layer in layers]
        self._shapes = [_first_of_kind(layers, kind) for kind in kinds]

    @property
    def groups(self) -> tuple[KvGroup, ...]:
        counts = [self._layer_groups.count(group) for group in range(len(self._shapes))]
        return tuple(
            KvGroup(count, shape.window, count * kv_page_bytes(self._group(shape, 1)))
            for count, shape in zip(counts, self._shapes, strict=True)
        )

    def cache(self, num_blocks: Sequence[int]) -> KvCache:
        """A KV cache with `num_blocks[n]` blocks in group n."""
        groups = [self._group(shape, count) for shape, count in zip(self._shapes, num_blocks, strict=True)]
        return KvCache(groups, self._layer_groups)

    def _group(self, shape: KvLayer, num_blocks: int) -> abi.KvGroup:
        return abi.KvGroup(num_blocks, shape.num_kv_heads, shape.head_size, shape.window or 0, self._dtype)


def _kind_of(layer: KvLayer) -> tuple[float, int, int]:
    window = float("inf") if layer.window is None else layer.window
    return (window, layer.num_kv_heads, layer.head_size)


def _first_of_kind(layers: Sequence[KvLayer], kind: tuple[float, int, int]) -> KvLayer:
    return next(layer for layer in layers if _kind_of(layer) == kind)
