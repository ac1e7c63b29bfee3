"""Gemma 3, text only.

Source: arXiv 2503.19786. Five layers of sliding-window attention for each full one, with a rotary base of their own;
every block has a norm before and after it; queries and keys are normalised per head.
Legend: T tokens, L rows that need logits, D hidden size, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.graph.ops import KvLayer, Ops, Rotary, Tensor, Weight
from octavo.models.config import ModelConfig
from octavo.models.declaration import Declaration
from octavo.models.rotary import rotary

DEFAULT_ROPE_BASE = 1_000_000.0
DEFAULT_SLIDING_ROPE_BASE = 10_000.0
DEFAULT_SLIDING_WINDOW_PATTERN = 6
NUM_LAYERS_27B = 62

GGUF_NAMES: Mapping[str, str] = {  # norm weights in these files already include the 1 of Gemma's (1 + weight)
    "embedding": "token_embd.weight",
    "layers.{i}.attention.norm": "blk.{i}.attn_norm.weight",
    "layers.{i}.attention.q": "blk.{i}.attn_q.weight",
    "layers.{i}.attention.q_norm": "blk.{i}.attn_q_norm.weight",
    "layers.{i}.attention.k": "blk.{i}.attn_k.weight",
    "layers.{i}.attention.k_norm": "blk.{i}.attn_k_norm.weight",
    "layers.{i}.attention.v": "blk.{i}.attn_v.weight",
    "layers.{i}.attention.output": "blk.{i}.attn_output.weight",
    "layers.{i}.attention.post_norm": "blk.{i}.post_attention_norm.weight",
    "layers.{i}.feed_forward.norm": "blk.{i}.ffn_norm.weight",
    "layers.{i}.feed_forward.gate": "blk.{i}.ffn_gate.weight",
    "layers.{i}.feed_forward.up": "blk.{i}.ffn_up.weight",
    "layers.{i}.feed_forward.down": "blk.{i}.ffn_down.weight",
    "layers.{i}.feed_forward.post_norm": "blk.{i}.post_ffw_norm.weight",
    "norm": "output_norm.weight",
    "output": "output.weight",
}


class Gemma3:
    """Decoder with norms around each block, qk-norm, alternating attention windows, GeGLU, scaled embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.num_layers = config.num_layers
        self._epsilon = config.norm_epsilon
        self._embedding_scale = config.hidden_size**0.5
        self._softcap = config.logits_softcap
        declare = Declaration()
        self._embedding = declare.matrix("embedding", config.vocab_size, config.hidden_size)
        self._attention = [_attention(declare, i, config) for i in range(config.num_layers)]
        self._feed_forward = [_FeedForward(declare, i, config) for i in range(config.num_layers)]
        self._norm = declare.vector("norm", config.hidden_size)
        self._output = self._embedding
        if not config.tied_embeddings:
            self._output = declare.matrix("output", config.vocab_size, config.hidden_size, "column")
        self.weights: Sequence[Weight] = declare.weights
        self.kv_layers: Sequence[KvLayer] = [attention.kv for attention in self._attention]

    def embed(self, ops: Ops) -> Tensor:
        return ops.embed(self._embedding, scale=self._embedding_scale)

    def layer(self, ops: Ops, index: int, x: Tensor) -> Tensor:
        """x_TD -> x_TD."""
        x = ops.add(x, self._attention[index](ops, x))
        return ops.add(x, self._feed_forward[index](ops, x))

    def head(self, ops: Ops, x: Tensor) -> Tensor:
        """x_TD -> logits_LV."""
        x = ops.rms_norm(ops.select_rows(x), self._norm, epsilon=self._epsilon)
        return ops.logits(x, self._output, softcap=self._softcap)


def _attention(declare: Declaration, index: int, config: ModelConfig) -> _Attention:
    """Every sixth layer sees everything, at the global rotary base; the others a window, at the local base."""
    pattern = config.sliding_window_pattern or DEFAULT_SLIDING_WINDOW_PATTERN
    if (index + 1) % pattern == 0 or config.sliding_window is None:
        rope = rotary(config.head_size, config.rope_base or DEFAULT_ROPE_BASE, config.rope_scaling)
        return _Attention(declare, index, config, rope, window=None)
    rope = rotary(config.head_size, config.sliding_rope_base or DEFAULT_SLIDING_ROPE_BASE)
    return _Attention(declare, index, config, rope, window=config.sliding_window)


def _query_scale(config: ModelConfig) -> float:
    """1 / sqrt(head size), but the 27B model divides by the square root of hidden size / heads."""
    if config.attention_scale is not None:
        return config.attention_scale
    if config.num_layers == NUM_LAYERS_27B:
        return float((config.hidden_size / config.num_heads) ** -0.5)
    return float(config.head_size**-0.5)


class _Attention:
    def __init__(self, declare: Declaration, index: int, config: ModelConfig, rope: Rotary, window: int | None) -> None:
        name, hidden = f"layers.{index}.attention", config.hidden_size
        q_columns = config.num_heads * config.head_size
        kv_columns = config.num_kv_heads * config.head_size
        self.norm = declare.vector(f"{name}.norm", hidden)
        self.q = declare.matrix(f"{name}.q", q_columns, hidden, "column")
        self.q_norm = declare.vector(f"{name}.q_norm", config.head_size)
        self.k = declare.matrix(f"{name}.k", kv_columns, hidden, "column")
        self.k_norm = declare.vector(f"{name}.k_norm", config.head_size)
        self.v = declare.matrix(f"{name}.v", kv_columns, hidden, "column")
        self.output = declare.matrix(f"{name}.output", hidden, q_columns, "row")
        self.post_norm = declare.vector(f"{name}.post_norm", hidden)
        self.kv = KvLayer(index, config.num_kv_heads, config.head_size, window)
        self.rope = rope
        self.epsilon = config.norm_epsilon
        self.num_heads = config.num_heads
        self.scale = _query_scale(config)
        self.softcap = config.attention_softcap

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        x = ops.rms_norm(x, self.norm, epsilon=self.epsilon)
        q = self._rotated_heads(ops, ops.linear(x, self.q), self.q_norm, self.num_heads)
        k = self._rotated_heads(ops, ops.linear(x, self.k), self.k_norm, self.kv.num_kv_heads)
        v = ops.linear(x, self.v)
        mixed = ops.attention(q, k, v, kv=self.kv, num_heads=self.num_heads, scale=self.scale, softcap=self.softcap)
        return ops.rms_norm(ops.linear(mixed, self.output), self.post_norm, epsilon=self.epsilon)

    def _rotated_heads(self, ops: Ops, x: Tensor, norm: Weight, num_heads: int) -> Tensor:
        x = ops.head_norm(x, norm, epsilon=self.epsilon, num_heads=num_heads)
        return ops.rope(x, self.rope, num_heads=num_heads)


class _FeedForward:
    def __init__(self, declare: Declaration, index: int, config: ModelConfig) -> None:
        name, hidden, inner = f"layers.{index}.feed_forward", config.hidden_size, config.feed_forward_size
        self.norm = declare.vector(f"{name}.norm", hidden)
        self.gate = declare.matrix(f"{name}.gate", inner, hidden, "column")
        self.up = declare.matrix(f"{name}.up", inner, hidden, "column")
        self.down = declare.matrix(f"{name}.down", hidden, inner, "row")
        self.post_norm = declare.vector(f"{name}.post_norm", hidden)
        self.epsilon = config.norm_epsilon

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        x = ops.rms_norm(x, self.norm, epsilon=self.epsilon)
        x = ops.linear(ops.gelu_mul(ops.linear(x, self.gate), ops.linear(x, self.up)), self.down)
        return ops.rms_norm(x, self.post_norm, epsilon=self.epsilon)
