"""Tiny random models of every family as checkpoints in memory, and their logits by the eager oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from octavo.backends.native.library import FloatArray
from octavo.graph.ops import Model, Ops, Tensor, Weight
from octavo.models.config import ModelConfig, Moe
from octavo.models.gemma3 import Gemma3
from octavo.models.llama import Llama
from octavo.models.qwen2 import Qwen2
from octavo.weights.checkpoint import Checkpoint, StoredTensor
from octavo.weights.gguf import GGUFType
from tests.models.eager import eager_logits
from tests.native.harness import RandomTensor, random_tensor

LLAMA = ModelConfig(
    vocab_size=301,
    max_positions=512,
    num_layers=3,
    hidden_size=96,
    feed_forward_size=160,
    num_heads=6,
    num_kv_heads=2,
    head_size=32,
    norm_epsilon=1e-5,
    tied_embeddings=True,
)
GEMMA = ModelConfig(
    vocab_size=301,
    max_positions=512,
    num_layers=4,
    hidden_size=64,
    feed_forward_size=192,
    num_heads=4,
    num_kv_heads=1,
    head_size=32,
    norm_epsilon=1e-6,
    tied_embeddings=True,
    sliding_window=20,
    sliding_window_pattern=3,
    sliding_rope_base=1000.0,
    attention_softcap=30.0,
    logits_softcap=20.0,
)


class LlamaWithSinks(Llama):
    """Llama whose attention has a sink for each head, as that of gpt-oss."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.sinks = [Weight(f"sinks.{index}", (config.num_heads,)) for index in range(config.num_layers)]
        self.weights = (*self.weights, *self.sinks)

    def layer(self, ops: Ops, index: int, x: Tensor) -> Tensor:
        return super().layer(cast(Ops, _SinkOps(ops, self.sinks[index])), index, x)


class _SinkOps:
    """Operations whose attention takes part with sinks."""

    def __init__(self, ops: Ops, sinks: Weight) -> None:
        self._ops = ops
        self._sinks = sinks

    def __getattr__(self, name: str) -> object:
        return getattr(self._ops, name)

    def attention(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._ops.attention(*args, **kwargs, sinks=self._sinks)


# All experts of a token are active: with fewer, rounding may choose another, and logits are far off.
MIXTRAL = replace(LLAMA, moe=Moe(num_experts=3, num_active=3, feed_forward_size=96))
SPARSE_MIXTRAL = replace(LLAMA, moe=Moe(num_experts=5, num_active=2, feed_forward_size=96))
FAMILIES: dict[str, Callable[[], Model]] = {
    "llama": lambda: Llama(LLAMA),
    "mixtral": lambda: Llama(MIXTRAL),
    "qwen2": lambda: Qwen2(LLAMA),
    "gemma3": lambda: Gemma3(GEMMA),
    "sinks": lambda: LlamaWithSinks(LLAMA),
}


class TinyModel:
    """A checkpoint of random tensors. Matrices take the encodings in turn, so that neighbours differ in layout."""

    def __init__(
        self, rng: np.random.Generator, model: Model, encodings: Sequence[GGUFType] = (GGUFType.Q4_1,)
    ) -> None:
        self.model = model
        matrices = [weight for weight in model.weights if len(weight.shape) > 1]
        self.tensors: dict[str, RandomTensor] = {}
        for weight in model.weights:
            encoding = encodings[matrices.index(weight) % len(encodings)] if weight in matrices else GGUFType.F32
            self.tensors[weight.name] = _tensor(rng, weight, encoding)
        self.checkpoint = Checkpoint(
            path=Path("tiny"),
            architecture="tiny",
            size_label="0M",
            model=model,
            tensors={
                name: StoredTensor(name, tensor.values.shape, tensor.encoding, tensor.data)
                for name, tensor in self.tensors.items()
            },
            tokenizer={},
            release=lambda: None,
        )

    def set_vector(self, name: str, values: FloatArray) -> None:
        tensor = RandomTensor(GGUFType.F32, values.view(np.uint8), values)
        stored = StoredTensor(name, values.shape, tensor.encoding, tensor.data)
        self.tensors[name] = tensor
        self.checkpoint = replace(self.checkpoint, tensors={**self.checkpoint.tensors, name: stored})

    def eager_logits(self, token_ids: Sequence[int]) -> FloatArray:
        weights = {name: torch.from_numpy(tensor.values) for name, tensor in self.tensors.items()}
        logits: FloatArray = eager_logits(self.model, weights, token_ids).numpy()
        return logits


def _tensor(rng: np.random.Generator, weight: Weight, encoding: GGUFType) -> RandomTensor:
    """Matrices that keep the size of what they multiply; norms around one, biases as small as they come."""
    if len(weight.shape) > 1:
        return random_tensor(rng, encoding, weight.shape, scale=weight.shape[-1] ** -0.5)
    tensor = random_tensor(rng, GGUFType.F32, weight.shape, scale=0.2)
    if "norm" not in weight.name:
        return tensor
    values = (tensor.values + 1).astype(np.float32)
    return RandomTensor(GGUFType.F32, values.view(np.uint8), values)
