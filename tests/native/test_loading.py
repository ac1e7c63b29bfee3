"""What a process holds while it loads a model: the weights once, and never much of the file beside them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from octavo.weights.gguf import GGUFType
from tests.unit.test_benchmarks import command
from tests.unit.test_loader import METADATA, write

HIDDEN, HEADS = 512, 8
TENSORS: dict[str, tuple[int, ...]] = {
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    **{f"blk.0.{name}.weight": (HIDDEN, HIDDEN) for name in ("attn_q", "attn_k", "attn_v", "attn_output")},
    **{f"blk.0.{name}.weight": (HIDDEN, HIDDEN) for name in ("ffn_gate", "ffn_up", "ffn_down")},
}
SIZES = {
    "llama.block_count": 1,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": HIDDEN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": HEADS,
}


@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer keeps memory of its own")
@pytest.mark.parametrize(
    ("embedding", "flags"),
    [
        (GGUFType.Q8_0, ("--activation-dtype", "int8")),
        (GGUFType.BF16, ("--activation-dtype", "bf16")),
        (GGUFType.BF16, ("--quantization", "int8")),
    ],
    ids=["quantised", "bf16", "quantised here"],
)
def test_no_second_copy_of_the_weights_is_made(embedding: GGUFType, flags: tuple[str, ...], tmp_path: Path) -> None:
    """Nearly all of the file is one matrix of some 100 MB, as large vocabularies make it in small models."""
    bytes_a_row = HIDDEN // embedding.block_size * embedding.block_bytes
    tensors = {"token_embd.weight": (100_000_001 // bytes_a_row, HIDDEN), **TENSORS}
    path = write(tmp_path / "m.gguf", {**METADATA, **SIZES}, tensors, {"token_embd.weight": embedding})
    subprocess.run(command("loading", str(path), *flags, "--json", str(tmp_path / "out.json")), check=True, timeout=120)
    loading = json.loads((tmp_path / "out.json").read_text())
    assert loading["packed_bytes"] > 50_000_000
    assert loading["growth_ratio"] < 1.15
