"""What a user asks of an engine, and what was made of it.

`EngineArgs` are the wishes, `EngineConfig` the decisions; one pure function, `engine/resolve.py`, turns the first (with
the model and the machine) into the second. Both are frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ActivationDtype = Literal["auto", "bf16", "int8"]
Quantization = Literal["int8"]
EvictionPolicy = Literal["lru", "lfu"]

DEFAULT_MODEL = "smollm2"
BLOCK_TOKENS = 16
DEFAULT_MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What holds for a request that does not say: fields of `SamplingParams`, and a limit to its output."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """The shared flags of every verb. None means "decide for me"."""

    model: str = DEFAULT_MODEL
    max_model_len: int | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 512
    memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    threads: int | None = None
    activation_dtype: ActivationDtype = "auto"
    quantization: Quantization | None = None
    seed: int = 0
    max_logprobs: int = DEFAULT_MAX_LOGPROBS
    enable_prefix_caching: bool = True
    prefix_eviction_policy: EvictionPolicy = "lru"
    generation_config: str = "auto"
    override_generation_config: str | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything decided at start, printed in the start-up block.

    `num_blocks` are those of the first layer group, `num_window_blocks` those of each further one.
    """

    model: str
    model_path: str
    architecture: str
    size_label: str
    isa: str
    threads: int
    activation_dtype: Literal["bf16", "int8"]
    quantization: Quantization | None
    weight_bytes: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    kv_cache_bytes: int
    vocab_size: int
    seed: int
    enable_prefix_caching: bool
    prefix_eviction_policy: EvictionPolicy
    max_logprobs: int = DEFAULT_MAX_LOGPROBS
    num_window_blocks: tuple[int, ...] = ()
    generation_defaults: GenerationDefaults = field(default_factory=GenerationDefaults)

    @property
    def kv_cache_tokens(self) -> int:
        return self.num_blocks * BLOCK_TOKENS
