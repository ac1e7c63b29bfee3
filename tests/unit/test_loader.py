"""Opening a checkpoint: what is missing, left over, of another shape or not supported is an error that names it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.errors import ModelError, ModelFileError, UnsupportedModelError
from octavo.weights.gguf import GGUFType
from octavo.weights.loader import open_checkpoint

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, VOCAB, LAYERS = 32, 4, 2, 64, 7, 2

METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.context_length": 64,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FEED_FORWARD,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a"] * VOCAB,
}
KV_COLUMNS = HIDDEN // HEADS * KV_HEADS
LAYER = {
    "attn_norm.weight": (HIDDEN,),
    "attn_q.weight": (HIDDEN, HIDDEN),
    "attn_k.weight": (KV_COLUMNS, HIDDEN),
    "attn_v.weight": (KV_COLUMNS, HIDDEN),
    "attn_output.weight": (HIDDEN, HIDDEN),
    "ffn_norm.weight": (HIDDEN,),
    "ffn_gate.weight": (FEED_FORWARD, HIDDEN),
    "ffn_up.weight": (FEED_FORWARD, HIDDEN),
    "ffn_down.weight": (HIDDEN, FEED_FORWARD),
}
TENSORS: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (VOCAB, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    **{f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in LAYER.items()},
}


def write(
    path: Path,
    metadata: dict[str, object],
    tensors: dict[str, tuple[int, ...]],
    types: dict[str, GGUFType] | None = None,
) -> Path:
    writer = gguf.GGUFWriter(path, str(metadata.get("general.architecture")))
    writer.kv_data[0].clear()
    for key, value in metadata.items():
        add_value(writer, key, value)
    for name, shape in tensors.items():
        kind = (types or {}).get(name, GGUFType.F32)
        rows = np.ones((*shape[:-1], shape[-1] // kind.block_size * kind.block_bytes), np.uint8)
        writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    methods: dict[type, Callable[[str, object], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    methods[type(value)](key, value)


def without(table: dict, name: str) -> dict:
    return {key: value for key, value in table.items() if key != name}


def test_a_good_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", METADATA, {**TENSORS, "output.weight": (VOCAB, HIDDEN)})
    with open_checkpoint(path) as checkpoint:
        model = checkpoint.model
        assert (checkpoint.path, checkpoint.architecture) == (path, "llama")
        assert list(checkpoint.tensors) == [weight.name for weight in model.weights]
        assert list(checkpoint.tokenizer) == ["tokenizer.ggml.tokens"]
        assert list(checkpoint.tokenizer["tokenizer.ggml.tokens"]) == ["a"] * VOCAB
        assert (model.num_layers, model.vocab_size, model.max_positions) == (LAYERS, VOCAB, 64)
        num_parameters = sum(int(np.prod(weight.shape)) for weight in model.weights)
        assert checkpoint.size_label == f"{num_parameters / 1000:.3g}K"
    assert not checkpoint.tensors, "a closed checkpoint holds no view of the file"
    assert path.name not in Path("/proc/self/maps").read_text()


def test_the_size_is_the_files_own_label(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {**METADATA, "general.size_label": "135M"}, TENSORS)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.size_label == "135M"


REQUIRED = [key for key in METADATA if key not in ("llama.attention.head_count_kv", "tokenizer.ggml.tokens")]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", without(METADATA, key), TENSORS)
    with pytest.raises(ModelFileError, match=f"m.gguf: metadata key '{key}' is missing"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", TENSORS)
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", METADATA, without(TENSORS, name))
    with pytest.raises(ModelFileError, match=f"m.gguf: tensor '{name}' is missing"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.2.attn_norm.weight", "stranger"])
def test_a_left_over_tensor_is_named(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", METADATA, {**TENSORS, name: (HIDDEN,)})
    with pytest.raises(ModelFileError, match=f"m.gguf: tensor '{name}' is not part of the model"):
        open_checkpoint(path)


@pytest.mark.parametrize(("name", "shape"), [("blk.1.attn_k.weight", (8, 32)), ("output_norm.weight", (1, HIDDEN))])
def test_a_tensor_of_another_shape_is_named(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", METADATA, {**TENSORS, name: shape})
    with pytest.raises(ModelFileError, match=rf"tensor '{name}' has shape .*, the model needs \["):
        open_checkpoint(path)


@pytest.mark.parametrize("kind", [GGUFType.I16, GGUFType.I32, GGUFType.F64])
def test_an_unsupported_tensor_type_is_named(kind: GGUFType, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", METADATA, TENSORS, {"blk.1.ffn_up.weight": kind})
    message = rf"tensor 'blk.1.ffn_up.weight' has type {kind.name}; supported are F32, F16, Q4_0.* Q6_K, .* MXFP4"
    with pytest.raises(UnsupportedModelError, match=message):
        open_checkpoint(path)


UNSUPPORTED = {
    "general.architecture": ("mamba", "architecture 'mamba' is not supported; supported are llama, qwen2, gemma3"),
    "llama.rope.scaling.type": ("yarn", "llama.rope.scaling.type = 'yarn' is not supported"),
    "llama.expert_gating_func": (2, "llama.expert_gating_func = 2 is not supported"),
    "llama.attention.clamp_kqv": (3.0, "llama.attention.clamp_kqv = 3.0 is not supported"),
    "llama.attention.causal": (False, "llama.attention.causal = False is not supported"),
    "llama.rope.dimension_count": (4, "llama.rope.dimension_count = 4 with heads of 8 is not supported"),
    "llama.attention.value_length": (16, "llama.attention.value_length = 16 with heads of 8 is not supported"),
    "llama.feed_forward_length": ([64, 32], "llama.feed_forward_length differs between layers"),
    "split.count": (3, "one of 3 pieces"),
}


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_what_octavo_does_not_have_is_named(key: str, tmp_path: Path) -> None:
    value, message = UNSUPPORTED[key]
    path = write(tmp_path / "m.gguf", {**METADATA, key: value}, TENSORS)
    with pytest.raises(UnsupportedModelError, match=f"m.gguf: .*{message}"):
        open_checkpoint(path)


MALFORMED: dict[str, tuple[object, str]] = {
    "general.architecture": (7, "'general.architecture' is 7, not a name"),
    "llama.block_count": (2**32 - 1, "says 4294967295 layers, but the file has only 20 tensors"),
    "llama.expert_count": (2000, "'llama.expert_count' is 2000; at most 1024 are supported"),
    "llama.context_length": ("long", "'llama.context_length' is 'long', not a whole number"),
    "llama.embedding_length": (33, "tensor|divide"),
    "llama.attention.head_count": (5, "'llama.attention.head_count' is 5, which does not divide"),
    "llama.attention.head_count_kv": (3, "'llama.attention.head_count_kv' is 3, which does not divide the 4 heads"),
    "llama.attention.key_length": (2**31, "makes heads of 2147483648 columns"),
    "llama.attention.layer_norm_rms_epsilon": (float("nan"), "layer_norm_rms_epsilon' is nan, not a finite number"),
    "llama.rope.freq_base": (-1.0, "'llama.rope.freq_base' is -1.0, not a finite number above zero"),
    "tokenizer.ggml.tokens": (["a"] * 8, "'tokenizer.ggml.tokens' has 8 tokens, but tensor 'token_embd.weight' only 7"),
}


@pytest.mark.parametrize("key", MALFORMED)
def test_a_value_that_makes_no_sense_is_named(key: str, tmp_path: Path) -> None:
    value, message = MALFORMED[key]
    path = write(tmp_path / "m.gguf", {**METADATA, key: value}, TENSORS)
    with pytest.raises(ModelFileError, match=f"m.gguf: .*{message}"):
        open_checkpoint(path)


def test_rope_divisors_are_checked(tmp_path: Path) -> None:
    def opened(shape: tuple[int, ...], kind: GGUFType) -> None:
        tensors = {**TENSORS, "rope_freqs.weight": shape}
        open_checkpoint(write(tmp_path / "m.gguf", METADATA, tensors, {"rope_freqs.weight": kind})).close()

    opened((4,), GGUFType.F32)
    with pytest.raises(ModelFileError, match=r"'rope_freqs.weight' has shape \[8\], not \[4\]"):
        opened((8,), GGUFType.F32)
    with pytest.raises(UnsupportedModelError, match=r"'rope_freqs.weight' has type F16; only F32"):
        opened((4,), GGUFType.F16)


@pytest.mark.parametrize(("window", "windows"), [(0, {None}), (16, {16})])
def test_a_llama_sliding_window_is_honoured(window: int, windows: set[int | None], tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {**METADATA, "llama.attention.sliding_window": window}, TENSORS)
    with open_checkpoint(path) as checkpoint:
        assert {kv.window for kv in checkpoint.model.kv_layers} == windows


def test_a_mutated_file_is_opened_or_refused(tmp_path: Path) -> None:
    """Random changes to header, metadata and table: a checkpoint or a typed error that names the file."""
    good = write(tmp_path / "good.gguf", METADATA, TENSORS).read_bytes()
    header_bytes = good.rindex(b"blk.1.ffn_down.weight") + 40
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    path = tmp_path / f"mutated-{seed}.gguf"
    for _ in range(500):
        raw = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            raw[rng.randrange(header_bytes)] = rng.choice([0, 1, 2, 127, 255, rng.randrange(256)])
        path.write_bytes(raw)
        try:
            open_checkpoint(path).close()
        except ModelError as error:
            assert str(path) in str(error)
