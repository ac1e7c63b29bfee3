"""The Llama family: Llama 2 and 3, Mistral, Mixtral, SmolLM2 and everything else of that shape.

Source: arXiv 2302.13971; grouped-query attention of Llama 2 (2307.09288), rotary divisors of Llama 3 (2407.21783).
Legend: T tokens, L rows that need logits, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.graph.ops import KvLayer, Ops, Rotary, Tensor, Weight
from octavo.models import moe
from octavo.models.config import ModelConfig
from octavo.models.declaration import Declaration
from octavo.models.rotary import rotary
from octavo.models.swiglu import SwigluFeedForward

DEFAULT_ROPE_BASE = 10_000.0

GGUF_NAMES: Mapping[str, str] = {
    "embedding": "token_embd.weight",
    "layers.{i}.attention.norm": "blk.{i}.attn_norm.weight",
    "layers.{i}.attention.q": "blk.{i}.attn_q.weight",
    "layers.{i}.attention.k": "blk.{i}.attn_k.weight",
    "layers.{i}.attention.v": "blk.{i}.attn_v.weight",
    "layers.{i}.attention.output": "blk.{i}.attn_output.weight",
    "layers.{i}.feed_forward.norm": "blk.{i}.ffn_norm.weight",
    "layers.{i}.feed_forward.gate": "blk.{i}.ffn_gate.weight",
    "layers.{i}.feed_forward.up": "blk.{i}.ffn_up.weight",
    "layers.{i}.feed_forward.down": "blk.{i}.ffn_down.weight",
    **moe.GGUF_NAMES,
    "norm": "output_norm.weight",
    "output": "output.weight",
}
GGUF_INTERLEAVED = ("layers.{i}.attention.q", "layers.{i}.attention.k")


class Llama:
    """Pre-norm decoder: grouped-query attention with rotary positions, SwiGLU feed-forward, RMS norms, no biases."""

    def __init__(self, config: ModelConfig) -> None:
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.num_layers = config.num_layers
        self._epsilon = config.norm_epsilon
        declare = Declaration()
        self._embedding = declare.matrix("embedding", config.vocab_size, config.hidden_size)
        rope = rotary(config.head_size, config.rope_base or DEFAULT_ROPE_BASE, config.rope_scaling)
        self._attention = [_Attention(declare, i, config, rope) for i in range(config.num_layers)]
        self._feed_forward = [_feed_forward(declare, i, config) for i in range(config.num_layers)]
        self._norm = declare.vector("norm", config.hidden_size)
        self._output = self._embedding
        if not config.tied_embeddings:
            self._output = declare.matrix("output", config.vocab_size, config.hidden_size, "column")
        self.weights: Sequence[Weight] = declare.weights
        self.kv_layers: Sequence[KvLayer] = [attention.kv for attention in self._attention]

    def embed(self, ops: Ops) -> Tensor:
        return ops.embed(self._embedding)

    def layer(self, ops: Ops, index: int, x: Tensor) -> Tensor:
        """x_TD -> x_TD."""
        x = ops.add(x, self._attention[index](ops, x))
        return ops.add(x, self._feed_forward[index](ops, x))

    def head(self, ops: Ops, x: Tensor) -> Tensor:
        """x_TD -> logits_LV."""
        x = ops.rms_norm(ops.select_rows(x), self._norm, epsilon=self._epsilon)
        return ops.logits(x, self._output)


def _feed_forward(declare: Declaration, index: int, config: ModelConfig) -> SwigluFeedForward | moe.MoeFeedForward:
    if config.moe is None:
        return SwigluFeedForward(declare, index, config)
    return moe.MoeFeedForward(declare, index, config, config.moe)


class _Attention:
    def __init__(self, declare: Declaration, index: int, config: ModelConfig, rope: Rotary) -> None:
        name, hidden = f"layers.{index}.attention", config.hidden_size
        q_columns = config.num_heads * config.head_size
        kv_columns = config.num_kv_heads * config.head_size
        self.norm = declare.vector(f"{name}.norm", hidden)
        self.q = declare.matrix(f"{name}.q", q_columns, hidden, "column")
        self.k = declare.matrix(f"{name}.k", kv_columns, hidden, "column")
        self.v = declare.matrix(f"{name}.v", kv_columns, hidden, "column")
        self.output = declare.matrix(f"{name}.output", hidden, q_columns, "row")
        self.kv = KvLayer(index, config.num_kv_heads, config.head_size, config.sliding_window)
        self.rope = rope
        self.epsilon = config.norm_epsilon
        self.num_heads = config.num_heads
        self.scale = config.attention_scale or config.head_size**-0.5

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        x = ops.rms_norm(x, self.norm, epsilon=self.epsilon)
        q = ops.rope(ops.linear(x, self.q), self.rope, num_heads=self.num_heads)
        k = ops.rope(ops.linear(x, self.k), self.rope, num_heads=self.kv.num_kv_heads)
        v = ops.linear(x, self.v)
        mixed = ops.attention(q, k, v, kv=self.kv, num_heads=self.num_heads, scale=self.scale)
        return ops.linear(mixed, self.output)
