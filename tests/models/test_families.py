"""Each model family against transformers: a tiny random model, converted to GGUF, opened, run eagerly; same logits.

Guards the arithmetic of the model files, their name tables, the row order of Llama's queries and keys, and how the
metadata becomes a configuration.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from octavo.graph.ops import Attention, Rope
from octavo.graph.trace import trace
from octavo.weights.loader import open_checkpoint
from tests.models.eager import eager_logits
from tests.models.gguf_conversion import decoded, randomise, write_gguf

SIZES = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 777.0}


def llama(**changes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, "rope_parameters": PLAIN_ROPE, **changes}))


def mixtral(**changes: object) -> PreTrainedModel:
    experts = {"num_local_experts": 5, "num_experts_per_tok": 2, "rope_parameters": PLAIN_ROPE}
    return MixtralForCausalLM(MixtralConfig(**{**SIZES, **experts, **changes}))


def qwen2(**changes: object) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**{**SIZES, "rope_parameters": PLAIN_ROPE, **changes}))


def gemma3(**changes: object) -> PreTrainedModel:
    gemma = {"num_hidden_layers": 7, "head_dim": 10, "query_pre_attn_scalar": 10, "sliding_window": 9}
    return Gemma3ForCausalLM(Gemma3TextConfig(**{**SIZES, **gemma, **changes}))


MODELS = {
    "llama": lambda: llama(tie_word_embeddings=False),
    "llama-tied": lambda: llama(tie_word_embeddings=True),
    "llama-mha": lambda: llama(num_key_value_heads=6),
    "llama-wide-heads": lambda: llama(head_dim=14),
    "llama3-rope": lambda: llama(rope_parameters=LLAMA3_ROPE),
    "llama-linear-rope": lambda: llama(rope_parameters=LINEAR_ROPE),
    "mixtral": mixtral,
    "mixtral-tied": lambda: mixtral(tie_word_embeddings=True, num_local_experts=3, num_experts_per_tok=3),
    "qwen2": lambda: qwen2(tie_word_embeddings=False),
    "qwen2-tied": lambda: qwen2(tie_word_embeddings=True),
    "gemma3": gemma3,
    "gemma3-softcap": lambda: gemma3(final_logit_softcapping=2.0),
    "gemma3-linear-rope": lambda: gemma3(
        rope_parameters={"full_attention": LINEAR_ROPE, "sliding_attention": {**PLAIN_ROPE, "rope_theta": 10_000.0}}
    ),
    "gemma3-window-of-one": lambda: gemma3(sliding_window=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    seed = torch.seed() % 2**32
    reference = randomise(MODELS[name](), seed)
    token_ids = torch.randint(SIZES["vocab_size"], (40,)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([token_ids])).logits[0]
    write_gguf(reference, tmp_path / "model.gguf")
    with open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        logits = eager_logits(checkpoint.model, decoded(checkpoint), token_ids)
    assert expected.std() > 0.2, "the weights are too small to show anything"
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4, msg=lambda text: f"seed {seed}: {text}")


@pytest.mark.parametrize("name", MODELS)
def test_traced_shapes_fit(name: str, tmp_path: Path) -> None:
    write_gguf(MODELS[name](), tmp_path / "model.gguf")
    with open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        graph = trace(checkpoint.model)
    assert graph.logits.columns == checkpoint.model.vocab_size
    assert sum(isinstance(node, Attention) for node in graph.nodes) == checkpoint.model.num_layers


def test_a_head_without_its_own_matrix_is_the_embedding(tmp_path: Path) -> None:
    write_gguf(llama(tie_word_embeddings=True), tmp_path / "model.gguf")
    with open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        graph = trace(checkpoint.model)
    assert graph.logits.weight.name == "embedding"
    assert [weight.name for weight in checkpoint.model.weights].count("embedding") == 1


def test_gemma_has_a_full_layer_after_five_with_a_window(tmp_path: Path) -> None:
    write_gguf(gemma3(num_hidden_layers=13), tmp_path / "model.gguf")
    with open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        windows = [kv.window for kv in checkpoint.model.kv_layers]
        ropes = [node for node in trace(checkpoint.model).nodes if isinstance(node, Rope)]
    assert windows == [9, 9, 9, 9, 9, None, 9, 9, 9, 9, 9, None, 9]
    assert len({node.rotary for node in ropes}) == 2
