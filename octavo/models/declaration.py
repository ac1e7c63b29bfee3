"""Declaring weights: a model names each parameter once, with its shape, and keeps the list."""

from __future__ import annotations

from octavo.graph.ops import Shard, Weight


class Declaration:
    """The weights a model has declared so far, in order."""

    def __init__(self) -> None:
        self._weights: list[Weight] = []

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(self._weights)

    def matrix(self, name: str, outputs: int, inputs: int, shard: Shard | None = None) -> Weight:
        return self._declare(Weight(name, (outputs, inputs), shard))

    def vector(self, name: str, size: int, shard: Shard | None = None) -> Weight:
        return self._declare(Weight(name, (size,), shard))

    def experts(self, name: str, num_experts: int, outputs: int, inputs: int) -> Weight:
        """One matrix for each expert."""
        return self._declare(Weight(name, (num_experts, outputs, inputs), "expert"))

    def _declare(self, weight: Weight) -> Weight:
        self._weights.append(weight)
        return weight
