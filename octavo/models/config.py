"""The numbers a model family needs to describe itself, whatever file format they came in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are slowed down for long contexts.

    `divisor` divides every frequency ("linear" scaling), `divisors` each its own (Llama 3); both may apply.
    """

    divisor: float = 1.0
    divisors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Moe:
    """Experts in place of each feed-forward block: how many, how many of them a token uses, how wide they are."""

    num_experts: int
    num_active: int
    feed_forward_size: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of one model. A None means that the file says nothing and the family decides."""

    vocab_size: int
    max_positions: int
    num_layers: int
    hidden_size: int
    feed_forward_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm_epsilon: float
    tied_embeddings: bool
    rope_base: float | None = None
    rope_scaling: RopeScaling = RopeScaling()
    sliding_window: int | None = None
    sliding_window_pattern: int | None = None
    sliding_rope_base: float | None = None
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    moe: Moe | None = None
