"""Puts an engine together: fetch, open, pack, decide, allocate."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from octavo import envs
from octavo.backends.native.executor import NativeExecutor
from octavo.backends.native.library import supported_isas
from octavo.config import EngineArgs, EngineConfig, GenerationDefaults
from octavo.engine.core import EngineCore
from octavo.engine.engine import Engine
from octavo.engine.input import InputProcessor
from octavo.engine.machine import Machine, read_machine
from octavo.engine.offload import open_block_store
from octavo.engine.resolve import Compute, ModelFacts, check_args, resolve, resolve_compute
from octavo.errors import ConfigError, InvalidValueError
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar.masks import MaskComputer
from octavo.kvcache.kv_cache import KvCache
from octavo.kvcache.window_group import WindowGroup
from octavo.metrics.stats import StatsListener
from octavo.tokenizer.gguf import load_tokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.weights import references
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.generation_config import read_generation_defaults
from octavo.weights.gguf import GGUFType
from octavo.weights.loader import open_checkpoint
from octavo.weights.progress import Progress, ignore_progress

logger = logging.getLogger(__name__)

_UNQUANTIZED = {GGUFType.F32, GGUFType.F16, GGUFType.BF16}


def build_engine(
    args: EngineArgs,
    *,
    progress: Progress = ignore_progress,
    listeners: Sequence[StatsListener] = (),
    warm_up: bool = False,
) -> Engine:
    """An engine that waits for its thread. `progress` hears of downloads and of packing the weights.

    `warm_up` prepares, while the weights are packed, what else the first request that needs it would wait for.

    Raises `ConfigError` or `ModelError`; nothing is kept open then.
    """
    check_args(args)
    isa = _forced_isa()
    path = references.resolve(args.model, progress)
    with open_checkpoint(path) as checkpoint, ThreadPoolExecutor(1) as side:
        defaults = read_generation_defaults(
            args.generation_config, args.override_generation_config, checkpoint.path, checkpoint.sampling
        )
        tokenizer = side.submit(_tokenizer, checkpoint, defaults)
        grammars = side.submit(_grammars, tokenizer, checkpoint.model.vocab_size, warm_up=warm_up)
        compute = resolve_compute(args, quantized=_is_quantized(checkpoint), machine=read_machine())
        executor = _pack(checkpoint, compute, isa, progress)
        facts = _facts(defaults, checkpoint, executor)
    try:
        machine = read_machine()
        config = resolve(args, facts, compute, machine)
        _warn_of_overcommitment(config, machine)
        _allocate(executor, config)
        return _assemble(config, tokenizer.result(), grammars.result(), executor, listeners)
    except BaseException:
        executor.close()
        raise


def _pack(checkpoint: Checkpoint, compute: Compute, isa: str | None, progress: Progress) -> NativeExecutor:
    return NativeExecutor(
        checkpoint,
        isa=isa,
        threads=compute.threads,
        activation_dtype=compute.activation_dtype,
        quantization=compute.quantization,
        kv_cache_dtype=compute.kv_cache_dtype,
        progress=lambda done_bytes, total_bytes: progress(done_bytes, total_bytes, "packing weights"),
    )


def _forced_isa() -> str | None:
    """Raises `ConfigError` for an instruction set that is not known, or that this machine lacks."""
    isa, possible = envs.cpu_isa(), supported_isas()
    if isa is not None and isa not in possible:
        raise ConfigError(
            f"OCTAVO_CPU_ISA is {isa!r}; this machine runs {', '.join(possible)}; unset, it is {possible[0]}"
        )
    return isa


def _tokenizer(checkpoint: Checkpoint, defaults: GenerationDefaults) -> Tokenizer:
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    try:
        return tokenizer.also_ending_with(defaults.eos_token_ids)
    except InvalidValueError as error:
        raise ConfigError(f"the model's generation config: eos_token_id: {error}") from None


def _grammars(tokenizer: Future[Tokenizer], vocab_size: int, *, warm_up: bool) -> GrammarCompiler:
    grammars = GrammarCompiler(tokenizer.result(), vocab_size)
    if warm_up:
        grammars.warm_up()
    return grammars


def _warn_of_overcommitment(config: EngineConfig, machine: Machine) -> None:
    """`--kv-cache-memory` is taken at its word; memory is used only as requests fill it."""
    if config.kv_cache_bytes > machine.memory_available_bytes:
        logger.warning(
            "the KV cache of %d MiB is larger than the %d MiB of memory available: when requests fill it, this process "
            "may be killed. Lower --kv-cache-memory, or leave it out",
            config.kv_cache_bytes >> 20,
            machine.memory_available_bytes >> 20,
        )


def _allocate(executor: NativeExecutor, config: EngineConfig) -> None:
    try:
        num_blocks = (config.num_blocks, *config.num_window_blocks)
        executor.allocate(num_blocks, config.max_num_seqs, config.max_num_batched_tokens, config.max_model_len)
    except MemoryError:
        raise ConfigError(
            f"there is not enough memory for the arrays of --max-num-seqs {config.max_num_seqs} requests of "
            f"--max-model-len {config.max_model_len} tokens and --max-num-batched-tokens "
            f"{config.max_num_batched_tokens}; lower one of them"
        ) from None


def _assemble(
    config: EngineConfig,
    tokenizer: Tokenizer,
    grammars: GrammarCompiler,
    executor: NativeExecutor,
    listeners: Sequence[StatsListener],
) -> Engine:
    return Engine(
        config=config,
        tokenizer=tokenizer,
        input=InputProcessor(
            tokenizer,
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            kv_cache_tokens=config.kv_cache_tokens,
            seed=config.seed,
            max_logprobs=config.max_logprobs,
            grammars=grammars,
        ),
        core=EngineCore(
            executor,
            tokenizer,
            _kv_cache(config, executor),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            masks=MaskComputer(config.vocab_size, config.threads),
            scheduling=config.scheduling,
            listeners=listeners,
        ),
    )


def _kv_cache(config: EngineConfig, executor: NativeExecutor) -> KvCache:
    groups = executor.kv_groups
    window_groups = zip(config.num_window_blocks, groups[1:], strict=True)
    return KvCache(
        config.num_blocks,
        [WindowGroup(num_blocks, group.window) for num_blocks, group in window_groups],
        prefix_caching=config.enable_prefix_caching,
        eviction_policy=config.prefix_eviction_policy,
        store=open_block_store(config, groups, executor.build),
    )


def _is_quantized(checkpoint: Checkpoint) -> bool:
    return any(tensor.encoding not in _UNQUANTIZED for tensor in checkpoint.tensors.values() if len(tensor.shape) > 1)


def _facts(defaults: GenerationDefaults, checkpoint: Checkpoint, executor: NativeExecutor) -> ModelFacts:
    return ModelFacts(
        model_path=str(checkpoint.path),
        architecture=checkpoint.architecture,
        size_label=checkpoint.size_label,
        vocab_size=checkpoint.model.vocab_size,
        max_positions=checkpoint.model.max_positions,
        weight_bytes=executor.weight_bytes,
        kv_groups=executor.kv_groups,
        isa=executor.isa,
        generation_defaults=defaults,
    )
