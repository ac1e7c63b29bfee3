"""A transformers model written as a GGUF file, float32, with the `gguf` package's own tensor names and key names.

Row permutation and extra tensors are what llama.cpp's converter does. A stand-in for it, so that files of any
architecture can be made in a test; it shares no table with Octavo's reader.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

from octavo.weights.checkpoint import Checkpoint
from octavo.weights.gguf import GGUFType

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}


def randomise(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Weights large enough that every part of the model shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(
                    noise * 0.3 + (1.0 if "norm" in name and "gemma" not in model.config.model_type else 0.0)
                )
    return model.eval()


def write_gguf(model: PreTrainedModel, path: Path) -> None:
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_metadata(writer, config)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    tied = config.tie_word_embeddings
    for name, parameter in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        if name.endswith(".mlp.experts.gate_up_proj"):
            _add_gate_and_up_experts(writer, int(name.split(".")[2]), parameter.float().numpy())
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if name.endswith(".mlp.experts.down_proj"):
            stored = f"blk.{name.split('.')[2]}.ffn_down_exps.weight"
        assert stored is not None, name
        writer.add_tensor(stored, _converted(name, parameter.float().numpy(), config))
    _add_rope_factors(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def decoded(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The float32 tensors of a checkpoint, rows in the model's order."""
    tensors = {}
    for name, stored in checkpoint.tensors.items():
        assert stored.encoding == GGUFType.F32
        values = stored.data.view(np.float32).reshape(stored.shape)
        tensors[name] = torch.from_numpy(np.array(values if stored.row_order is None else values[stored.row_order]))
    return tensors


def _add_metadata(writer: gguf.GGUFWriter, config) -> None:
    head_size = (
        config.head_dim
        if config.model_type in ("llama", "gemma3_text")
        else config.hidden_size // config.num_attention_heads
    )
    rope = config.rope_parameters
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        rope = rope["full_attention"]
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.model_type == "mixtral":
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _add_gate_and_up_experts(writer: gguf.GGUFWriter, layer: int, values: np.ndarray) -> None:
    """transformers keeps gate and up of an expert in one matrix, one above the other."""
    gate, up = np.split(values, 2, axis=1)
    writer.add_tensor(f"blk.{layer}.ffn_gate_exps.weight", np.ascontiguousarray(gate))
    writer.add_tensor(f"blk.{layer}.ffn_up_exps.weight", np.ascontiguousarray(up))


def _add_rope_factors(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    """What the converter writes for Llama 3: by how much each frequency is divided."""
    rope = model.config.rope_parameters
    if rope.get("rope_type") != "llama3":
        return
    scaled = model.model.rotary_emb.inv_freq.double().numpy()
    plain = rope["rope_theta"] ** -(np.arange(len(scaled)) / len(scaled))
    writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))


def _converted(name: str, values: np.ndarray, config) -> np.ndarray:
    if config.model_type in ("llama", "mixtral") and name.endswith("q_proj.weight"):
        return _interleaved(values, config.num_attention_heads)
    if config.model_type in ("llama", "mixtral") and name.endswith("k_proj.weight"):
        return _interleaved(values, config.num_key_value_heads)
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return values + 1
    return values


def _interleaved(values: np.ndarray, num_heads: int) -> np.ndarray:
    rows, columns = values.shape
    return values.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
