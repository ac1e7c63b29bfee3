"""Wishes, model and machine to decisions; every refusal must name values that do fit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import BLOCK_TOKENS, EngineArgs
from octavo.engine.kv_memory import KvMemory
from octavo.engine.machine import Machine
from octavo.engine.resolve import Compute, ModelFacts, check_args, resolve, resolve_compute
from octavo.errors import ConfigError
from octavo.server.startup import startup_text
from octavo.step import KvGroup

MIB = 2**20
FACTS = ModelFacts("m.gguf", "llama", "135M", 49152, 2048, 90 * MIB, (KvGroup(30, None, MIB),), "avx2")
SLIDING = replace(FACTS, kv_groups=(KvGroup(5, None, MIB // 4), KvGroup(15, 512, 3 * MIB // 4)))
COMPUTE = Compute(2, "int8")


def machine(mib: int) -> Machine:
    return Machine(num_cores=6, memory_available_bytes=mib * MIB)


def test_by_default_the_cache_takes_its_share_of_the_memory() -> None:
    config = resolve(EngineArgs(), FACTS, COMPUTE, machine(1000))
    assert config.num_blocks == 900 and config.kv_cache_bytes == 900 * MIB and config.kv_cache_tokens == 14400
    assert config.max_model_len == 2048


def test_never_more_than_all_requests_could_use() -> None:
    assert resolve(EngineArgs(max_num_seqs=3), FACTS, COMPUTE, machine(10**6)).num_blocks == 3 * 128
    assert resolve(EngineArgs(max_num_seqs=3, max_model_len=17), FACTS, COMPUTE, machine(10**6)).num_blocks == 6


def test_an_exact_size_is_rounded_down_to_blocks_and_not_capped() -> None:
    args = EngineArgs(kv_cache_memory_bytes=500 * MIB - 1, max_num_seqs=1)
    assert resolve(args, FACTS, COMPUTE, machine(1)).num_blocks == 499


def test_a_size_beyond_what_blocks_can_be_counted_is_refused_with_the_largest() -> None:
    with pytest.raises(ConfigError, match=r"--kv-cache-memory is \d+, .* at most (\d+)") as refusal:
        resolve(EngineArgs(kv_cache_memory_bytes=900 * 2**40), FACTS, COMPUTE, machine(1))
    largest = int(str(refusal.value).split("at most ")[1].split(",")[0])
    assert resolve(EngineArgs(kv_cache_memory_bytes=largest), FACTS, COMPUTE, machine(1)).num_blocks < 2**31


def test_max_model_len_beyond_the_model_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"4096.*2048"):
        resolve(EngineArgs(max_model_len=4096), FACTS, COMPUTE, machine(1000))


def test_layers_with_a_window_get_what_running_requests_need_twice() -> None:
    config = resolve(EngineArgs(max_num_seqs=4, max_num_batched_tokens=64), SLIDING, COMPUTE, machine(1000))
    window_blocks = 2 * (4 * (32 + 2) + 4)
    assert config.num_window_blocks == (window_blocks,)
    assert config.num_blocks == min((900 - window_blocks * 3 // 4) * 4, 4 * 128)
    assert config.kv_cache_bytes == config.num_blocks * MIB // 4 + window_blocks * 3 * MIB // 4


def test_in_little_memory_layers_with_a_window_get_as_many_blocks_as_the_others() -> None:
    config = resolve(EngineArgs(max_model_len=512), SLIDING, COMPUTE, machine(100))
    assert (config.num_blocks, config.num_window_blocks) == (90, (90,))


@given(
    facts=st.sampled_from([FACTS, SLIDING]),
    mib=st.integers(0, 300),
    exact=st.none() | st.integers(0, 300 * MIB),
    max_model_len=st.integers(2, 2048),
    utilization=st.floats(0.01, 1.0),
)
def test_each_value_a_refusal_names_does_fit(
    facts: ModelFacts, mib: int, exact: int | None, max_model_len: int, utilization: float
) -> None:
    args = EngineArgs(max_model_len=max_model_len, kv_cache_memory_bytes=exact, memory_utilization=utilization)
    try:
        config = resolve(args, facts, COMPUTE, machine(mib))
    except ConfigError as error:
        message = str(error)
    else:
        assert config.kv_cache_tokens >= max_model_len
        return
    assert f"max_model_len {max_model_len}" in message
    kv_bytes = re.search(r"--kv-cache-memory (\d+)", message)
    assert kv_bytes is not None
    remedies = [replace(args, kv_cache_memory_bytes=int(kv_bytes[1]))]
    if length := re.search(r"--max-model-len (\d+) or less", message):
        remedies.append(replace(args, max_model_len=int(length[1])))
    if share := re.search(r"--memory-utilization ([\d.]+)(?: without|$)", message):
        remedies.append(replace(args, memory_utilization=float(share[1]), kv_cache_memory_bytes=None))
    else:
        assert "--memory-utilization cannot help" in message
        memory = KvMemory(facts.kv_groups, args.max_num_seqs, args.max_num_batched_tokens)
        assert memory.most_blocks(mib * MIB) < -(-max_model_len // BLOCK_TOKENS)
    for remedy in remedies:
        assert resolve(remedy, facts, COMPUTE, machine(mib)).kv_cache_tokens >= (remedy.max_model_len or 0)


def test_threads_and_dtype() -> None:
    assert _compute(EngineArgs(), quantized=True) == (6, "int8", None, "bf16")
    assert _compute(EngineArgs(threads=3), quantized=False) == (3, "bf16", None, "bf16")
    explicit = EngineArgs(activation_dtype="bf16", kv_cache_dtype="int8")
    assert _compute(explicit, quantized=True) == (6, "bf16", None, "int8")


def _compute(args: EngineArgs, *, quantized: bool) -> tuple[object, ...]:
    compute = resolve_compute(args, quantized=quantized, machine=machine(1))
    return compute.threads, compute.activation_dtype, compute.quantization, compute.kv_cache_dtype


def _startup_text(args: EngineArgs, *, quantized: bool) -> str:
    compute = resolve_compute(args, quantized=quantized, machine=machine(1))
    return startup_text(resolve(args, FACTS, compute, machine(1000)), "http://x", ("m",))


def test_the_start_up_text_says_why_auto_became_what_it_is() -> None:
    text = _startup_text(EngineArgs(), quantized=True)
    assert "int8 activations (auto: the weights in the file are quantised)" in text
    assert "in bf16 (auto: int8 would take half the memory, but slow down prompts)" in text
    assert "bf16 activations (auto: the weights in the file have 16" in _startup_text(EngineArgs(), quantized=False)
    assert "(auto: --quantization int8)" in _startup_text(EngineArgs(quantization="int8"), quantized=False)
    chosen = _startup_text(EngineArgs(activation_dtype="int8", kv_cache_dtype="int8"), quantized=True)
    assert "auto" not in chosen and "in int8\n" in chosen


def test_quantization_brings_int8_activations_and_is_for_files_of_16_bits() -> None:
    args = EngineArgs(quantization="int8")
    assert _compute(args, quantized=False) == (6, "int8", "int8", "bf16")
    with pytest.raises(ConfigError, match="--quantization int8: the weights in the file are quantised already"):
        resolve_compute(args, quantized=True, machine=machine(1))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (EngineArgs(max_num_seqs=0), "--max-num-seqs is 0.*at least 1"),
        (EngineArgs(max_num_seqs=10**9), "--max-num-seqs is 1000000000.*at most 65536"),
        (EngineArgs(max_num_batched_tokens=0), "--max-num-batched-tokens is 0"),
        (EngineArgs(max_num_batched_tokens=2**31), "--max-num-batched-tokens is 2147483648.*at most 1048576"),
        (EngineArgs(threads=0), "--threads is 0"),
        (EngineArgs(kv_cache_memory_bytes=-1), "--kv-cache-memory is -1.*at least 1"),
        *(
            (EngineArgs(**{name: value}), f"--{flag} is {value!r}; it must be an integer")
            for value in ("2", 1.5, True)
            for name, flag in (
                ("max_num_seqs", "max-num-seqs"),
                ("max_num_batched_tokens", "max-num-batched-tokens"),
                ("threads", "threads"),
                ("max_model_len", "max-model-len"),
                ("seed", "seed"),
                ("kv_cache_memory_bytes", "kv-cache-memory"),
            )
        ),
        (EngineArgs(memory_utilization="all"), "--memory-utilization is all"),  # type: ignore[arg-type]
        (EngineArgs(prefix_eviction_policy="fifo"), "--prefix-eviction-policy is 'fifo'; it must be lru or lfu"),  # type: ignore[arg-type]
        (EngineArgs(kv_offload_bytes=0), "--kv-offload-size is 0.*at least 1"),
        (EngineArgs(kv_offload_dir="d", enable_prefix_caching=False), "--kv-offload-dir needs prefix caching"),
        (EngineArgs(max_model_len=1), "--max-model-len is 1.*at least 2"),
        (EngineArgs(memory_utilization=0.0), "--memory-utilization is 0.0"),
        (EngineArgs(memory_utilization=1.5), "--memory-utilization is 1.5"),
        (EngineArgs(memory_utilization=float("nan")), "--memory-utilization is nan"),
        (EngineArgs(kv_cache_dtype="fp8"), "--kv-cache-dtype is 'fp8'; it must be auto, bf16 or int8"),  # type: ignore[arg-type]
        (EngineArgs(quantization="int4"), "--quantization is 'int4'; it must be int8"),  # type: ignore[arg-type]
        (EngineArgs(quantization="int8", activation_dtype="bf16"), "--quantization int8 needs int8 activations"),
        (EngineArgs(activation_dtype="fp8"), "--activation-dtype is 'fp8'"),  # type: ignore[arg-type]
    ],
)
def test_impossible_values_are_refused_by_flag(args: EngineArgs, words: str) -> None:
    check_args(EngineArgs())
    with pytest.raises(ConfigError, match=words):
        check_args(args)
