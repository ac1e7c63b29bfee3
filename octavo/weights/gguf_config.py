"""A `ModelConfig` from the metadata of a GGUF file.

Keys that change the arithmetic in a way Octavo does not have are refused by name; a missing key is an error naming it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.config import ModelConfig, Moe, RopeScaling
from octavo.weights.gguf import GGUFFile, GGUFTensor, GGUFType, MetadataValue

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
ROPE_DIVISORS = "rope_freqs.weight"
MAX_HEAD_SIZE = 4096
MAX_EXPERTS = 1024

# Keys below the architecture's name and the one value under which they change nothing.
_NEUTRAL_VALUES: Mapping[str, MetadataValue] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.output_scale": 1.0,
    "embedding_scale": 1.0,
    "expert_gating_func": 1,  # softmax
    "expert_shared_count": 0,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.0,
    "leading_dense_block_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "use_parallel_residual": False,
}


def read_config(file: GGUFFile, architecture: str) -> ModelConfig:
    """The configuration of the model in `file`. Raises `ModelFileError` and `UnsupportedModelError`."""
    keys = MetadataKeys(file, architecture)
    _refuse_unknown_arithmetic(keys)
    num_layers = keys.count("block_count")
    if num_layers > len(file.tensors):
        keys.fail("block_count", f"says {num_layers} layers, but the file has only {len(file.tensors)} tensors")
    num_heads = keys.count("attention.head_count")
    head_size = _head_size(keys, num_heads)
    num_kv_heads = keys.count("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        keys.fail("attention.head_count_kv", f"is {num_kv_heads}, which does not divide the {num_heads} heads")
    return ModelConfig(
        vocab_size=_vocab_size(file),
        max_positions=keys.count("context_length"),
        num_layers=num_layers,
        hidden_size=keys.count("embedding_length"),
        feed_forward_size=keys.count("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        norm_epsilon=keys.positive("attention.layer_norm_rms_epsilon"),
        tied_embeddings=OUTPUT not in file.tensors,
        rope_base=keys.optional_positive("rope.freq_base"),
        rope_scaling=_rope_scaling(keys, file, head_size),
        sliding_window=keys.optional_count("attention.sliding_window"),
        sliding_window_pattern=keys.optional_count("attention.sliding_window_pattern"),
        sliding_rope_base=keys.optional_positive("rope.freq_base_swa"),
        attention_scale=keys.optional_positive("attention.scale"),
        attention_softcap=keys.optional_positive("attn_logit_softcapping"),
        logits_softcap=keys.optional_positive("final_logit_softcapping"),
        moe=_moe(keys),
    )


class MetadataKeys:
    """Typed access to the keys below the architecture's name."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file = file
        self.architecture = architecture

    def full(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def value(self, name: str) -> MetadataValue | None:
        return self.file.metadata.get(self.full(name))

    def fail(self, name: str, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.file.path}: metadata value {self.full(name)!r} {problem}")

    def refuse(self, name: str) -> NoReturn:
        raise UnsupportedModelError(
            f"{self.file.path}: {self.full(name)} = {self.value(name)!r} is not supported in this architecture"
        )

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.optional_count(name)
        value = default if value is None else value
        if value is None:
            raise ModelFileError(f"{self.file.path}: metadata key {self.full(name)!r} is missing")
        return value

    def positive(self, name: str) -> float:
        """A finite number above zero."""
        value = self.optional_positive(name)
        if value is None:
            raise ModelFileError(f"{self.file.path}: metadata key {self.full(name)!r} is missing")
        return value

    def optional_count(self, name: str) -> int | None:
        """A whole number above zero, or None where the key is missing or zero ("not used" in GGUF)."""
        value = self.value(name)
        if value is None or value == 0:
            return None
        if isinstance(value, Sequence) and not isinstance(value, str):
            return self._uniform(name, value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.fail(name, f"is {value!r}, not a whole number above zero")
        return value

    def optional_positive(self, name: str) -> float | None:
        """A finite number above zero, or None where the key is missing or zero."""
        value = self.value(name)
        if value is None or value == 0:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self.fail(name, f"is {value!r}, not a finite number above zero")
        return float(value)

    def _uniform(self, name: str, values: Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str]) -> int:
        """One number where the file has one for each layer, which is supported if they are all the same."""
        first = values[0] if values else None
        if isinstance(first, bool) or not isinstance(first, int) or first <= 0:
            self.fail(name, "is no list of whole numbers above zero")
        if any(value != first for value in values):
            raise UnsupportedModelError(
                f"{self.file.path}: {self.full(name)} differs between layers, which is not supported"
            )
        return first


def _refuse_unknown_arithmetic(keys: MetadataKeys) -> None:
    for name, neutral in _NEUTRAL_VALUES.items():
        if keys.value(name) not in (None, neutral):
            keys.refuse(name)


def _head_size(keys: MetadataKeys, num_heads: int) -> int:
    hidden_size = keys.count("embedding_length")
    head_size = keys.optional_count("attention.key_length")
    if head_size is None:
        if hidden_size % num_heads:
            keys.fail("attention.head_count", f"is {num_heads}, which does not divide the hidden size {hidden_size}")
        head_size = hidden_size // num_heads
    if head_size > MAX_HEAD_SIZE:
        keys.fail("attention.key_length", f"makes heads of {head_size} columns; at most {MAX_HEAD_SIZE} are supported")
    if head_size % 2:
        keys.fail("attention.key_length", f"makes heads of {head_size} columns, an odd number, which cannot be rotated")
    for name in ("attention.value_length", "rope.dimension_count"):
        if keys.count(name, head_size) != head_size:
            raise UnsupportedModelError(
                f"{keys.file.path}: {keys.full(name)} = {keys.value(name)} with heads of {head_size} is not supported"
            )
    return head_size


def _moe(keys: MetadataKeys) -> Moe | None:
    num_experts = keys.optional_count("expert_count")
    if num_experts is None:
        return None
    if num_experts > MAX_EXPERTS:
        keys.fail("expert_count", f"is {num_experts}; at most {MAX_EXPERTS} are supported")
    num_active = keys.count("expert_used_count")
    if num_active > num_experts:
        keys.fail("expert_used_count", f"is {num_active}, but there are {num_experts} experts")
    width = keys.count("expert_feed_forward_length", keys.count("feed_forward_length"))
    return Moe(num_experts, num_active, width)


def _vocab_size(file: GGUFFile) -> int:
    """The rows of the embedding, which must cover the tokenizer's vocabulary."""
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None:
        raise ModelFileError(f"{file.path}: tensor {EMBEDDING!r} is missing")
    rows = embedding.shape[0]
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sequence) and not isinstance(tokens, str) and len(tokens) > rows:
        raise ModelFileError(
            f"{file.path}: 'tokenizer.ggml.tokens' has {len(tokens)} tokens, but tensor {EMBEDDING!r} only {rows} rows"
        )
    return rows


def _rope_scaling(keys: MetadataKeys, file: GGUFFile, head_size: int) -> RopeScaling:
    divisors = None
    if ROPE_DIVISORS in file.tensors:
        divisors = _rope_divisors(file, file.tensors[ROPE_DIVISORS], head_size)
    kind = keys.value("rope.scaling.type")
    if kind not in (None, "none", "linear"):
        keys.refuse("rope.scaling.type")
    if kind == "none":
        return RopeScaling(divisors=divisors)
    factor = keys.optional_positive("rope.scaling.factor") or keys.optional_positive("rope.scale_linear")
    return RopeScaling(factor or 1.0, divisors)


def _rope_divisors(file: GGUFFile, tensor: GGUFTensor, head_size: int) -> tuple[float, ...]:
    where = f"{file.path}: tensor {tensor.name!r}"
    if tensor.type is not GGUFType.F32:
        raise UnsupportedModelError(f"{where} has type {tensor.type.name}; only F32 is supported here")
    if tensor.shape != (head_size // 2,):
        raise ModelFileError(f"{where} has shape {list(tensor.shape)}, not [{head_size // 2}]")
    values = tuple(float(value) for value in np.frombuffer(tensor.data, "<f4"))
    if not all(0 < value < math.inf for value in values):
        raise ModelFileError(f"{where} has a divisor that is not a finite number above zero")
    return values
