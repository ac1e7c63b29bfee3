"""What keys are divided by: chosen for the weights, applied by the kernels, and enough for an int8 KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pytest
import torch

from octavo.backends.native.executor import NativeExecutor
from octavo.backends.native.instructions import Attention, Buffer, RopeKv, RotaryTable
from octavo.backends.native.key_divisors import TYPICAL_CONTEXT_TOKENS, key_divisors
from octavo.backends.native.library import Context, FloatArray
from octavo.graph import ops
from octavo.graph.ops import KvLayer, Rotary, Tensor, Weight
from octavo.graph.trace import trace
from octavo.models.gemma3 import Gemma3
from octavo.models.qwen2 import Qwen2
from tests.native.harness import F32, Chunk, Step, kv_cache, num_blocks_for, run
from tests.native.reference import attention, rope, rotary_table
from tests.native.tiny import GEMMA, LLAMA, TinyModel

HEADS, HEAD_SIZE, LENGTH = 6, 32, 90
KV = KvLayer(0, 2, HEAD_SIZE)
ROTARY = Rotary(tuple(1000.0 ** (-i / 12) for i in range(12)))  # of 24 of the 32 channels


def attended(
    context: Context, qkv: FloatArray, dtype: Literal["bf16", "int8"], divisors: FloatArray | None
) -> FloatArray:
    blocks = list(range(num_blocks_for(LENGTH)))
    return run(
        context,
        [Buffer(F32, qkv.shape[1]), Buffer(F32, 24), Buffer(F32, HEADS * HEAD_SIZE)],
        [RotaryTable(1, ROTARY), RopeKv(0, 1, HEADS, KV), Attention(0, 2, HEADS, KV, HEAD_SIZE**-0.5)],
        Step([Chunk(LENGTH, 0, blocks)]),
        inputs={0: qkv},
        kv=kv_cache([KV], len(blocks), dtype),
        key_divisors={} if divisors is None else {0: divisors},
    ).buffers[2]


def exact(qkv: FloatArray) -> FloatArray:
    x = torch.from_numpy(qkv).double().reshape(LENGTH, -1, HEAD_SIZE)
    table = rotary_table(range(LENGTH), ROTARY.inverse_frequencies)
    q, k, v = x.tensor_split([HEADS, HEADS + KV.num_kv_heads], 1)
    found: FloatArray = attention(rope(q, table), rope(k, table), v, HEAD_SIZE**-0.5).reshape(LENGTH, -1).numpy()
    return found


def test_powers_of_two_change_no_bit_in_bf16(context: Context, rng: np.random.Generator) -> None:
    """Each head of the queries is multiplied by what its own head of the keys is divided by."""
    qkv = rng.standard_normal((LENGTH, (HEADS + 4) * HEAD_SIZE)).astype(np.float32)
    divisors = np.exp2(rng.integers(-9, 9, (KV.num_kv_heads, HEAD_SIZE))).astype(np.float32)
    with_divisors = attended(context, qkv, "bf16", divisors)
    np.testing.assert_array_equal(with_divisors, attended(context, qkv, "bf16", None))


def test_large_channels_of_keys_do_not_spoil_int8_codes(context: Context, rng: np.random.Generator) -> None:
    qkv = rng.standard_normal((LENGTH, HEADS + 4, HEAD_SIZE)).astype(np.float32)
    sizes = np.ones((KV.num_kv_heads, HEAD_SIZE), np.float32)
    sizes[0, [3, 15]] = 100  # a pair
    sizes[1, 30] = 300  # not rotated
    qkv[:, HEADS:-2] *= sizes
    qkv[:, :HEADS] /= np.repeat(sizes, HEADS // 2, axis=0)
    qkv = qkv.reshape(LENGTH, -1)
    errors = [np.abs(attended(context, qkv, "int8", divisors) - exact(qkv)).mean() for divisors in (None, sizes)]
    assert errors[1] < errors[0] / 10


def heads_of(values: Mapping[str, FloatArray], side: str, num_heads: int, rng: np.random.Generator) -> torch.Tensor:
    """Queries or keys of random inputs at the positions of a typical context, by torch."""
    x = rng.standard_normal((TYPICAL_CONTEXT_TOKENS * 4, 96)).astype(np.float32) * values["norm"]
    y = torch.from_numpy(x @ values[side].T + values[f"{side}.bias"]).reshape(len(x), num_heads, HEAD_SIZE)
    positions = [position % TYPICAL_CONTEXT_TOKENS for position in range(len(x))]
    return rope(y, rotary_table(positions, ROTARY.inverse_frequencies))


def test_divisors_follow_the_sizes_of_keys_and_queries(rng: np.random.Generator) -> None:
    """cbrt(K^2 / Q) of root mean squares measured on random inputs."""
    x = ops.RmsNorm(96, Tensor(96), Weight("norm", (96,)), 1e-6)
    shapes = {"q": HEADS * HEAD_SIZE, "k": KV.num_kv_heads * HEAD_SIZE}
    values: dict[str, FloatArray] = {"norm": rng.uniform(0.1, 3, 96).astype(np.float32)}
    sides = {}
    for side, columns in shapes.items():
        row_sizes = np.exp(rng.uniform(-3, 1, (columns, 1)))
        values[side] = (rng.standard_normal((columns, 96)) * row_sizes).astype(np.float32)
        values[f"{side}.bias"] = (rng.standard_normal(columns) * 20).astype(np.float32)
        values[f"{side}.bias"].reshape(-1, HEAD_SIZE)[:, 12:24] = 0  # two of a pair would turn together
        linear = ops.Linear(columns, x, Weight(side, (columns, 96)), Weight(f"{side}.bias", (columns,)))
        sides[side] = ops.Rope(columns, linear, ROTARY, columns // HEAD_SIZE)
    node = ops.Attention(192, sides["q"], sides["k"], Tensor(64), KV, HEADS, 1.0)
    found = key_divisors(node, lambda weight: values[weight.name])
    k = heads_of(values, "k", KV.num_kv_heads, rng).pow(2).mean(0).sqrt()
    q = heads_of(values, "q", HEADS, rng).reshape(-1, KV.num_kv_heads, 3, HEAD_SIZE).pow(2).mean((0, 2)).sqrt()
    np.testing.assert_allclose(found, (k**2 / q).pow(1 / 3).numpy(), rtol=0.1)


def test_divisors_of_normed_heads_follow_the_weights_of_the_norm(rng: np.random.Generator) -> None:
    node = next(node for node in trace(Gemma3(GEMMA)).nodes if isinstance(node, ops.Attention))
    norms = {"q": np.full(32, 2, np.float32), "k": np.full(32, 5, np.float32)}
    norms["k"][[7, 23]] = -40  # both of a pair
    found = key_divisors(node, lambda weight: norms["k" if "k_norm" in weight.name else "q"])
    want = np.full((1, 32), (25 / 2) ** (1 / 3))
    want[:, [7, 23]] = (1600 / 2) ** (1 / 3)
    np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e9])
def test_divisors_are_finite_and_positive_for_any_weights(value: float, rng: np.random.Generator) -> None:
    node = next(node for node in trace(Qwen2(LLAMA)).nodes if isinstance(node, ops.Attention))
    values = {weight.name: np.zeros(weight.shape, np.float32) for weight in Qwen2(LLAMA).weights}
    for name in values:
        values[name].flat[0] = value
    found = key_divisors(node, lambda weight: values[weight.name])
    assert found.shape == (2, 32)
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_an_int8_kv_cache_stands_large_biases_of_keys(isa: str, rng: np.random.Generator) -> None:
    """As Qwen2.5 has them: some channels of a head are far larger than the rest. Undivided, the error is 0.11-0.15."""
    model = TinyModel(rng, Qwen2(LLAMA))
    for name, tensor in list(model.tensors.items()):
        if name.endswith("k_bias"):
            biased = tensor.values.copy()
            biased[[5, 14, 40, 63]] = rng.choice([-60, 60], 4)
            model.set_vector(name, biased)
    prompt = tuple(rng.integers(0, LLAMA.vocab_size, 75).tolist())
    want = model.eager_logits(prompt)
    executor = NativeExecutor(model.checkpoint, isa=isa, threads=1, activation_dtype="bf16", kv_cache_dtype="int8")
    error = executor.score(prompt) - want
    print(f"relative error {np.sqrt((error**2).mean() / (want**2).mean()):.3f}")
    assert (error**2).mean() < 0.08**2 * (want**2).mean()
