"""The mixture of experts that replaces a feed-forward block, with its norm. Source: Mixtral, arXiv 2401.04088."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.graph.ops import Ops, Tensor
from octavo.models.config import ModelConfig, Moe
from octavo.models.declaration import Declaration

GGUF_NAMES: Mapping[str, str] = {
    "layers.{i}.feed_forward.router": "blk.{i}.ffn_gate_inp.weight",
    "layers.{i}.feed_forward.gate_experts": "blk.{i}.ffn_gate_exps.weight",
    "layers.{i}.feed_forward.up_experts": "blk.{i}.ffn_up_exps.weight",
    "layers.{i}.feed_forward.down_experts": "blk.{i}.ffn_down_exps.weight",
}


class MoeFeedForward:
    """The likeliest SwiGLU experts of each token, weighted; their shares add up to one."""

    def __init__(self, declare: Declaration, index: int, config: ModelConfig, moe: Moe) -> None:
        name, hidden, inner = f"layers.{index}.feed_forward", config.hidden_size, moe.feed_forward_size
        self.norm = declare.vector(f"{name}.norm", hidden)
        self.router = declare.matrix(f"{name}.router", moe.num_experts, hidden)
        self.gate = declare.experts(f"{name}.gate_experts", moe.num_experts, inner, hidden)
        self.up = declare.experts(f"{name}.up_experts", moe.num_experts, inner, hidden)
        self.down = declare.experts(f"{name}.down_experts", moe.num_experts, hidden, inner)
        self.num_active = moe.num_active
        self.epsilon = config.norm_epsilon

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        """x_TD -> what the block adds to it."""
        x = ops.rms_norm(x, self.norm, epsilon=self.epsilon)
        return ops.moe(x, self.router, self.gate, self.up, self.down, num_active=self.num_active, renormalise=True)
