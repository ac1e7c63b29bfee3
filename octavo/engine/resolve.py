"""From what the user asked for, what the model is and what the machine has, to the engine's configuration.

Pure functions: the same inputs give the same decisions, and every refusal says which values would do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Literal

from octavo.config import BLOCK_TOKENS, EngineArgs, EngineConfig, GenerationDefaults, Quantization
from octavo.engine.kv_memory import KvMemory
from octavo.engine.machine import Machine
from octavo.engine.resolve_scheduling import check_scheduling_args, resolve_scheduling
from octavo.errors import ConfigError
from octavo.kvcache.block_table import blocks_for
from octavo.step import KvGroup

# What the backend can count in 32 bits, with room to spare.
MOST_ROWS = 2**16
MOST_BATCHED_TOKENS = 2**20
MOST_BLOCKS = 2**27


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the configuration depends on, known once the weights are packed."""

    model_path: str
    architecture: str
    size_label: str
    vocab_size: int
    max_positions: int
    weight_bytes: int
    kv_groups: tuple[KvGroup, ...]
    isa: str
    generation_defaults: GenerationDefaults = field(default_factory=GenerationDefaults)


@dataclass(frozen=True, slots=True)
class Compute:
    """What must be decided before the weights can be packed. A reason is empty where the user has decided."""

    threads: int
    activation_dtype: Literal["bf16", "int8"]
    quantization: Quantization | None = None
    kv_cache_dtype: Literal["bf16", "int8"] = "bf16"
    activation_dtype_reason: str = ""
    kv_cache_dtype_reason: str = ""


def check_args(args: EngineArgs) -> None:
    """Raises `ConfigError` for values that no model and no machine could satisfy."""
    for flag, value in (
        ("--max-num-seqs", args.max_num_seqs),
        ("--max-num-batched-tokens", args.max_num_batched_tokens),
        ("--threads", 1 if args.threads is None else args.threads),
        ("--max-model-len", 2 if args.max_model_len is None else args.max_model_len),
        ("--kv-cache-memory", 1 if args.kv_cache_memory_bytes is None else args.kv_cache_memory_bytes),
        ("--kv-offload-size", args.kv_offload_bytes),
        ("--seed", args.seed),
        ("--max-logprobs", args.max_logprobs),
    ):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ConfigError(f"{flag} is {value!r}; it must be an integer")
    _require_at_least(1, "--max-num-seqs", args.max_num_seqs)
    _require_at_most(MOST_ROWS, "--max-num-seqs", args.max_num_seqs)
    _require_at_least(1, "--max-num-batched-tokens", args.max_num_batched_tokens)
    _require_at_most(MOST_BATCHED_TOKENS, "--max-num-batched-tokens", args.max_num_batched_tokens)
    _require_at_least(1, "--threads", args.threads)
    _require_at_least(2, "--max-model-len", args.max_model_len)
    _require_at_least(-1, "--max-logprobs", args.max_logprobs)
    _require_at_least(1, "--kv-cache-memory", args.kv_cache_memory_bytes)
    _require_at_least(1, "--kv-offload-size", args.kv_offload_bytes)
    if args.activation_dtype not in ("auto", "bf16", "int8"):
        raise ConfigError(f"--activation-dtype is {args.activation_dtype!r}; it must be auto, bf16 or int8")
    if args.kv_cache_dtype not in ("auto", "bf16", "int8"):
        raise ConfigError(f"--kv-cache-dtype is {args.kv_cache_dtype!r}; it must be auto, bf16 or int8")
    if args.quantization not in (None, "int8"):
        raise ConfigError(f"--quantization is {args.quantization!r}; it must be int8, or left out")
    if args.quantization is not None and args.activation_dtype == "bf16":
        raise ConfigError("--quantization int8 needs int8 activations; leave --activation-dtype out or set it to int8")
    if args.kv_offload_dir is not None and not args.enable_prefix_caching:
        raise ConfigError("--kv-offload-dir needs prefix caching; leave out --no-enable-prefix-caching")
    if args.prefix_eviction_policy not in ("lru", "lfu"):
        raise ConfigError(f"--prefix-eviction-policy is {args.prefix_eviction_policy!r}; it must be lru or lfu")
    check_scheduling_args(args)
    if not isinstance(args.memory_utilization, Real) or not 0.0 < args.memory_utilization <= 1.0:
        raise ConfigError(f"--memory-utilization is {args.memory_utilization}; it must be above 0 and at most 1")


def resolve_compute(args: EngineArgs, *, quantized: bool, machine: Machine) -> Compute:
    """`quantized`: the file's matrices are stored in fewer than 16 bits.

    Raises `ConfigError` when such a file is to be quantised again.
    """
    threads = machine.num_cores if args.threads is None else args.threads
    if args.quantization is not None and quantized:
        raise ConfigError(
            f"--quantization {args.quantization}: the weights in the file are quantised already; leave the flag out"
        )
    activation_dtype, activation_dtype_reason = _resolve_activation_dtype(args, quantized=quantized)
    kv_cache_dtype, kv_cache_dtype_reason = _resolve_kv_cache_dtype(args)
    return Compute(
        threads,
        activation_dtype,
        args.quantization,
        kv_cache_dtype,
        activation_dtype_reason=activation_dtype_reason,
        kv_cache_dtype_reason=kv_cache_dtype_reason,
    )


def _resolve_activation_dtype(args: EngineArgs, *, quantized: bool) -> tuple[Literal["bf16", "int8"], str]:
    """The type, and why `auto` became it (docs/decisions/0005)."""
    if args.activation_dtype != "auto":
        return args.activation_dtype, ""
    if quantized:
        return "int8", "the weights in the file are quantised"
    if args.quantization is not None:
        return "int8", f"--quantization {args.quantization}"
    return "bf16", "the weights in the file have 16 or 32 bits"


def _resolve_kv_cache_dtype(args: EngineArgs) -> tuple[Literal["bf16", "int8"], str]:
    """The type, and why `auto` became it (docs/decisions/0006)."""
    if args.kv_cache_dtype != "auto":
        return args.kv_cache_dtype, ""
    return "bf16", "int8 would take half the memory, but slow down prompts"


def resolve(args: EngineArgs, facts: ModelFacts, compute: Compute, machine: Machine) -> EngineConfig:
    """Decides everything else. `machine.memory_available_bytes` is what is left with the weights in memory.

    Raises `ConfigError` when `max_model_len` exceeds the model, or one request of that length the memory.
    """
    max_model_len = _resolve_max_model_len(args, facts)
    memory = KvMemory(facts.kv_groups, args.max_num_seqs, args.max_num_batched_tokens)
    num_blocks = _resolve_num_blocks(args, memory, max_model_len, machine)
    return EngineConfig(
        model=args.model,
        model_path=facts.model_path,
        architecture=facts.architecture,
        size_label=facts.size_label,
        isa=facts.isa,
        threads=compute.threads,
        activation_dtype=compute.activation_dtype,
        activation_dtype_reason=compute.activation_dtype_reason,
        quantization=compute.quantization,
        weight_bytes=facts.weight_bytes,
        max_model_len=max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        num_blocks=num_blocks,
        num_window_blocks=memory.blocks(num_blocks)[1:],
        kv_cache_dtype=compute.kv_cache_dtype,
        kv_cache_dtype_reason=compute.kv_cache_dtype_reason,
        kv_cache_bytes=memory.bytes(num_blocks),
        vocab_size=facts.vocab_size,
        seed=args.seed,
        max_logprobs=args.max_logprobs,
        enable_prefix_caching=args.enable_prefix_caching,
        prefix_eviction_policy=args.prefix_eviction_policy,
        kv_offload_dir=args.kv_offload_dir,
        kv_offload_bytes=args.kv_offload_bytes,
        generation_defaults=facts.generation_defaults,
        scheduling=resolve_scheduling(args),
    )


def _require_at_least(least: int, flag: str, value: int | None) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{flag} is {value}; it must be at least {least}")


def _require_at_most(most: int, flag: str, value: int) -> None:
    if value > most:
        raise ConfigError(f"{flag} is {value}; it must be at most {most}")


def _resolve_max_model_len(args: EngineArgs, facts: ModelFacts) -> int:
    if args.max_model_len is None:
        return facts.max_positions
    if args.max_model_len > facts.max_positions:
        raise ConfigError(
            f"--max-model-len is {args.max_model_len}; the model has at most {facts.max_positions} positions"
        )
    return args.max_model_len


def _resolve_num_blocks(args: EngineArgs, memory: KvMemory, max_model_len: int, machine: Machine) -> int:
    """As many blocks as fit; by default no more than `max_num_seqs` requests of maximum length could use."""
    num_needed = blocks_for(max_model_len)
    if args.kv_cache_memory_bytes is not None:
        budget_bytes = args.kv_cache_memory_bytes
        num_blocks = memory.most_blocks(budget_bytes)
    else:
        budget_bytes = int(args.memory_utilization * machine.memory_available_bytes)
        num_blocks = min(memory.most_blocks(budget_bytes), args.max_num_seqs * num_needed)
    if num_blocks < num_needed:
        raise ConfigError(_does_not_fit(args, memory, max_model_len, num_blocks, budget_bytes, machine))
    if num_blocks > MOST_BLOCKS:
        raise ConfigError(
            f"--kv-cache-memory is {budget_bytes}, {num_blocks} blocks; it must be at most "
            f"{memory.bytes(MOST_BLOCKS)}, {MOST_BLOCKS} blocks"
        )
    return num_blocks


def _does_not_fit(
    args: EngineArgs, memory: KvMemory, max_model_len: int, num_blocks: int, budget_bytes: int, machine: Machine
) -> str:
    """What one request of `max_model_len` needs, what there is, and each value that would make it fit."""
    needed_bytes = memory.bytes(blocks_for(max_model_len))
    longest = num_blocks * BLOCK_TOKENS
    remedies = [f"--kv-cache-memory {needed_bytes} (bytes)"]
    if longest >= 2:
        remedies.insert(0, f"--max-model-len {longest} or less")
    utilization = _utilization_for(needed_bytes, machine.memory_available_bytes)
    if utilization is not None:
        instead = "" if args.kv_cache_memory_bytes is None else " without --kv-cache-memory"
        remedies.append(f"--memory-utilization {utilization}{instead}")
    else:
        remedies.append(
            f"--memory-utilization cannot help: even 1.0 of the {_mib(machine.memory_available_bytes)} available "
            "is too little"
        )
    return (
        f"one request of max_model_len {max_model_len} tokens needs {_mib(needed_bytes)} of KV cache, but there is "
        f"{_mib(budget_bytes)}, room for {longest} tokens. What would fit: {'; '.join(remedies)}"
    )


def _utilization_for(needed_bytes: int, available_bytes: int) -> float | None:
    """The smallest utilisation, in hundredths, that gives `needed_bytes`; None if none does."""
    hundredths = -(-needed_bytes * 100 // available_bytes) if available_bytes > 0 else 101
    return hundredths / 100 if hundredths <= 100 else None


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
