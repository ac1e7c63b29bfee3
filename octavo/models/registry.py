"""The models Octavo has: one line in one table for each architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.graph.ops import Model
from octavo.models import gemma3, llama, qwen2
from octavo.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture is built and what its weights are called in GGUF files ("{i}" stands for the layer).

    `gguf_interleaved` are the weights whose rows GGUF stores with rotary pairs side by side, not half a head apart.
    With `has_experts` its feed-forward blocks may be mixtures of experts.
    """

    build: Callable[[ModelConfig], Model]
    gguf_names: Mapping[str, str]
    gguf_interleaved: tuple[str, ...] = ()
    has_experts: bool = False


ARCHITECTURES: Mapping[str, Family] = {
    "llama": Family(llama.Llama, llama.GGUF_NAMES, llama.GGUF_INTERLEAVED, has_experts=True),
    "qwen2": Family(qwen2.Qwen2, qwen2.GGUF_NAMES),
    "gemma3": Family(gemma3.Gemma3, gemma3.GGUF_NAMES),
}
