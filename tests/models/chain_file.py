"""A model whose next token depends on the last one alone, as a GGUF file: for tests that script a real engine.

A Llama whose layers add nothing: its state is one-hot in the last token, and its head has a row of ones where one token
may follow another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_METHODS = {str: "add_string", int: "add_uint32", float: "add_float32", list: "add_array"}
_HEAD_SIZE = 64
_UNUSED_SIZE = 32


def write_chain(path: Path, tokenizer: Mapping[str, Any], followers: Mapping[int, tuple[int, ...]]) -> Path:
    """Writes the model. After token t one of `followers[t]` comes, all equally likely; after others any token may."""
    vocab_size = len(tokenizer["tokenizer.ggml.tokens"])
    hidden_size = -(-vocab_size // _HEAD_SIZE) * _HEAD_SIZE
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(2048)
    writer.add_embedding_length(hidden_size)
    writer.add_feed_forward_length(_UNUSED_SIZE)
    writer.add_head_count(hidden_size // _HEAD_SIZE)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in tokenizer.items():
        getattr(writer, _METHODS[type(value)])(key, value)
    for name, tensor in _tensors(vocab_size, hidden_size, followers).items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(vocab_size: int, hidden_size: int, followers: Mapping[int, tuple[int, ...]]) -> dict[str, np.ndarray]:
    zeros = {
        "attn_q": (hidden_size, hidden_size),
        "attn_k": (_HEAD_SIZE, hidden_size),
        "attn_v": (_HEAD_SIZE, hidden_size),
        "attn_output": (hidden_size, hidden_size),
        "ffn_gate": (_UNUSED_SIZE, hidden_size),
        "ffn_up": (_UNUSED_SIZE, hidden_size),
        "ffn_down": (hidden_size, _UNUSED_SIZE),
    }
    head = np.zeros((vocab_size, hidden_size), np.float32)
    for token_id, following in followers.items():
        head[list(following), token_id] = 1
    ones = np.ones(hidden_size, np.float32)
    return {
        "token_embd": np.eye(vocab_size, hidden_size, dtype=np.float32),
        "output_norm": ones,
        "output": head,
        "blk.0.attn_norm": ones,
        "blk.0.ffn_norm": ones,
        **{f"blk.0.{name}": np.zeros(shape, np.float32) for name, shape in zeros.items()},
    }
