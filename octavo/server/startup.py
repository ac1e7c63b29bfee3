"""What was decided at start, told when the server is ready."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from octavo.config import EngineConfig
from octavo.version import __version__

_GIB, _MIB = 2**30, 2**20


def startup_text(config: EngineConfig, url: str, served_model_names: tuple[str, ...]) -> str:
    """Several lines for people."""
    rows = {
        "model": f"{Path(config.model_path).stem} ({config.architecture}, {config.size_label})",
        "file": config.model_path,
        "weights": ", ".join(_weights(config)),
        "compute": f"{config.isa}, {_count(config.threads, 'thread')}",
        "KV cache": f"{_size(config.kv_cache_bytes)} = {config.kv_cache_tokens:,} tokens = "
        f"{_concurrency(config):.1f} requests of maximum length, in "
        f"{_because(config.kv_cache_dtype, config.kv_cache_dtype_reason)}",
        "limits": f"{config.max_model_len:,} tokens a request, {config.max_num_seqs:,} requests at once, "
        f"{config.max_num_batched_tokens:,} tokens a step",
        "served as": ", ".join(served_model_names),
        "URL": f"{url}/v1",
    }
    lines = [f"  {name:<10} {value}" for name, value in rows.items()]
    return "\n".join([f"Octavo {__version__} is ready", *lines])


def startup_values(config: EngineConfig, url: str, served_model_names: tuple[str, ...]) -> dict[str, object]:
    """The same as values for a JSON log."""
    return {
        "version": __version__,
        **asdict(config),
        "kv_cache_tokens": config.kv_cache_tokens,
        "max_concurrency": round(_concurrency(config), 2),
        "served_model_names": list(served_model_names),
        "url": url,
    }


def _weights(config: EngineConfig) -> list[str]:
    quantized = [] if config.quantization is None else [f"quantised to {config.quantization}"]
    activations = _because(f"{config.activation_dtype} activations", config.activation_dtype_reason)
    return [_size(config.weight_bytes), *quantized, activations]


def _because(decision: str, reason: str) -> str:
    return f"{decision} (auto: {reason})" if reason else decision


def _concurrency(config: EngineConfig) -> float:
    return config.kv_cache_tokens / config.max_model_len


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB" if num_bytes >= _GIB else f"{num_bytes / _MIB:.1f} MiB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
