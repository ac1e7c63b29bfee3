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
KvCacheDtype = Literal["auto", "bf16", "int8"]
EvictionPolicy = Literal["lru", "lfu"]
SchedulingPolicy = Literal["fcfs", "priority", "fair", "shortest"]
PRIORITIES = range(-100, 101)
"""A request's priority; lower goes first. Bounded, so that the oldest request's turn comes in finite time."""

DEFAULT_MODEL = "smollm2"
BLOCK_TOKENS = 16
DEFAULT_KV_OFFLOAD_BYTES = 2 * 2**30
DEFAULT_MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What holds for a request that does not say: fields of `SamplingParams`, and a limit to its output.

    `eos_token_ids` end an answer as those do that the model file names.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    eos_token_ids: tuple[int, ...] = ()


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
    kv_offload_dir: str | None = None
    kv_offload_bytes: int = DEFAULT_KV_OFFLOAD_BYTES
    kv_cache_dtype: KvCacheDtype = "auto"
    generation_config: str = "auto"
    override_generation_config: str | None = None
    scheduling_policy: Literal["auto"] | SchedulingPolicy = "auto"
    tenant_weights: tuple[tuple[str, float], ...] = ()
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int | None = None
    max_long_partial_prefills: int | None = None
    target_ttft_s: float | None = None
    target_tpot_s: float | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    queue_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class ServiceTargets:
    """How long a client should wait for the first token, and on average for each further one; None: no promise."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def given(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None

    def met_by(self, ttft_s: float, tpot_s: float) -> bool:
        """Whether a finished answer was within all targets that are given."""
        return (self.ttft_s is None or ttft_s <= self.ttft_s) and (self.tpot_s is None or tpot_s <= self.tpot_s)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What may wait: beyond, requests are refused; after `timeout_s` they are given up. None: no limit."""

    max_requests: int | None = None
    max_tokens: int | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """What long prompts may do to others.

    A prefill with more than `long_tokens` left to compute is long (None: none is). Together long ones get at most that
    many tokens of a step, and no more than half of those of prompts and a third of its time, while anybody else is
    here. At most `max_partial` prompts, and `max_long_partial` long ones, are under way at once (None: any number).
    """

    long_tokens: int | None = None
    max_partial: int | None = None
    max_long_partial: int = 1


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """Whom the scheduler serves, in which order, and within which bounds. `weights` are by the name of an API key."""

    policy: SchedulingPolicy = "fair"
    weights: tuple[tuple[str, float], ...] = ()
    prefill: PrefillLimits = PrefillLimits()
    targets: ServiceTargets = ServiceTargets()
    queue: QueueLimits = QueueLimits()

    @property
    def honours_priority(self) -> bool:
        """Whether a request's `priority` changes anything under this policy."""
        return self.policy in ("priority", "fair")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything decided at start, printed in the start-up block.

    `num_blocks` are those of the first layer group, `num_window_blocks` those of each further one. A reason says what
    an `auto` was decided by, and is empty where the user has decided.
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
    kv_offload_dir: str | None = None
    kv_offload_bytes: int = DEFAULT_KV_OFFLOAD_BYTES
    kv_cache_dtype: Literal["bf16", "int8"] = "bf16"
    activation_dtype_reason: str = ""
    kv_cache_dtype_reason: str = ""
    generation_defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    scheduling: SchedulingConfig = SchedulingConfig()

    @property
    def kv_cache_tokens(self) -> int:
        return self.num_blocks * BLOCK_TOKENS
