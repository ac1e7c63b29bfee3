"""The SwiGLU feed-forward block with its norm. Source: arXiv 2002.05202."""

from __future__ import annotations

from octavo.graph.ops import Ops, Tensor
from octavo.models.config import ModelConfig
from octavo.models.declaration import Declaration


class SwigluFeedForward:
    """down(silu(gate(norm(x))) * up(norm(x))) of one layer."""

    def __init__(self, declare: Declaration, index: int, config: ModelConfig) -> None:
        name, hidden, inner = f"layers.{index}.feed_forward", config.hidden_size, config.feed_forward_size
        self.norm = declare.vector(f"{name}.norm", hidden)
        self.gate = declare.matrix(f"{name}.gate", inner, hidden, "column")
        self.up = declare.matrix(f"{name}.up", inner, hidden, "column")
        self.down = declare.matrix(f"{name}.down", hidden, inner, "row")
        self.epsilon = config.norm_epsilon

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        """x_TD -> what the block adds to it."""
        x = ops.rms_norm(x, self.norm, epsilon=self.epsilon)
        return ops.linear(ops.silu_mul(ops.linear(x, self.gate), ops.linear(x, self.up)), self.down)
