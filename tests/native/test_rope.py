"""The rotary table, norm and rotation of q and k, and what reaches the KV cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backends.native.instructions import Attention, Buffer, Operation, RopeKv, RotaryTable
from octavo.backends.native.library import Context, FloatArray
from octavo.graph.ops import KvLayer, Rotary
from tests.native.harness import F32, Chunk, Step, kv_cache, num_blocks_for, run
from tests.native.reference import attention, rms_norm, rope, rotary_table

EPSILON = 1e-6


def frequencies(count: int, base: float = 10000.0) -> tuple[float, ...]:
    return tuple(float(base ** (-i / count)) for i in range(count))


def table_of(context: Context, rotary: Rotary, step: Step) -> FloatArray:
    columns = 2 * len(rotary.inverse_frequencies)
    return run(context, [Buffer(F32, columns)], [RotaryTable(0, rotary)], step).buffers[0]


@pytest.mark.parametrize("count", [1, 5, 32, 128])
def test_rotary_table_is_exact_far_out(context: Context, count: int) -> None:
    rotary = Rotary(frequencies(count, 1e6), magnitude=1.25)
    for first in (0, 1, 4093, 100_000, 1_000_000):
        found = table_of(context, rotary, Step([Chunk(7, first)]))
        want = rotary_table(range(first, first + 7), rotary.inverse_frequencies, 1.25)
        np.testing.assert_allclose(found, want.numpy(), atol=2e-7)


def test_rotary_table_of_no_tokens(context: Context) -> None:
    assert table_of(context, Rotary(frequencies(4)), Step([])).shape == (0, 8)


@pytest.mark.parametrize("norms", [False, True], ids=["plain", "norms"])
@pytest.mark.parametrize(
    ("head_size", "num_frequencies"), [(2, 1), (16, 8), (32, 4), (64, 32), (80, 40), (80, 10), (256, 128)]
)
def test_q_is_normed_and_rotated_in_place(
    context: Context, head_size: int, num_frequencies: int, norms: bool, rng: np.random.Generator
) -> None:
    heads, kv = 4, KvLayer(0, 2, head_size)
    rotary = Rotary(frequencies(num_frequencies))
    weights = rng.standard_normal((2, head_size)).astype(np.float32)
    chunks = [Chunk(3, 40, [5, 1, 7]), Chunk(1, 15, [0]), Chunk(2, 15, [2, 3])]
    qkv = rng.standard_normal((6, 8 * head_size)).astype(np.float32)
    operations: list[Operation] = [RotaryTable(1, rotary)]
    operations += [RopeKv(0, 1, heads, kv, EPSILON, "q", "k") if norms else RopeKv(0, 1, heads, kv)]
    found = run(
        context,
        [Buffer(F32, 8 * head_size), Buffer(F32, 2 * num_frequencies)],
        operations,
        Step(chunks),
        inputs={0: qkv},
        vectors={"q": weights[0], "k": weights[1]},
        kv=kv_cache([kv], 8),
    ).buffers[0]
    want = torch.from_numpy(qkv).double()[:, : heads * head_size].reshape(6, heads, head_size)
    if norms:
        want = rms_norm(want, torch.from_numpy(weights[0]).double(), EPSILON)
    want = rope(want, rotary_table([40, 41, 42, 15, 15, 16], rotary.inverse_frequencies))
    np.testing.assert_allclose(found[:, : heads * head_size], want.reshape(6, -1).numpy(), atol=3e-6)


def test_v_is_stored_rounded_to_bf16(context: Context, rng: np.random.Generator) -> None:
    """A query that sees only itself returns its v."""
    kv = KvLayer(0, 3, 20, window=1)
    qkv = rng.standard_normal((50, 9 * 20)).astype(np.float32)
    found = run(
        context,
        [Buffer(F32, 9 * 20), Buffer(F32, 3 * 20)],
        [RopeKv(0, None, 3, kv), Attention(0, 1, 3, kv, 0.2)],
        Step([Chunk(33, 3, [4, 0, 6]), Chunk(1, 47, [1, 2, 3]), Chunk(16, 16, [7, 5])]),
        inputs={0: qkv},
        kv=kv_cache([kv], 8),
    ).buffers[1]
    want = torch.from_numpy(qkv[:, 6 * 20 :]).bfloat16().float()
    np.testing.assert_array_equal(found, want.numpy())


@pytest.mark.parametrize("head_size", [16, 64, 80])
def test_k_is_normed_rotated_and_stored(context: Context, head_size: int, rng: np.random.Generator) -> None:
    """Seen through attention. A k that rounds to its other neighbour moves a few outputs: the mean tells more."""
    heads, groups, length = 6, 2, 70
    kv, rotary = KvLayer(0, groups, head_size), Rotary(frequencies(head_size // 2))
    norms = rng.standard_normal((2, head_size)).astype(np.float32)
    qkv = rng.standard_normal((length, (heads + 2 * groups) * head_size)).astype(np.float32)
    scale = head_size**-0.5
    blocks = rng.permutation(num_blocks_for(length)).tolist()
    found = run(
        context,
        [Buffer(F32, qkv.shape[1]), Buffer(F32, head_size), Buffer(F32, heads * head_size)],
        [RotaryTable(1, rotary), RopeKv(0, 1, heads, kv, EPSILON, "q", "k"), Attention(0, 2, heads, kv, scale)],
        Step([Chunk(length, 0, blocks)]),
        inputs={0: qkv},
        vectors={"q": norms[0], "k": norms[1]},
        kv=kv_cache([kv], len(blocks)),
    ).buffers[2]
    x = torch.from_numpy(qkv).double().reshape(length, -1, head_size)
    table = rotary_table(range(length), rotary.inverse_frequencies)
    weights = torch.from_numpy(norms).double()
    q = rope(rms_norm(x[:, :heads], weights[0], EPSILON), table)
    k = rope(rms_norm(x[:, heads : heads + groups], weights[1], EPSILON), table)
    v = x[:, heads + groups :]
    want = attention(q, k.bfloat16().double(), v.bfloat16().double(), scale).reshape(length, -1).numpy()
    tolerance = 2e-3 if context.isa == "avx512" else 1e-4
    assert np.abs(found - want).mean() < tolerance
    assert np.abs(found - want).max() < 2e-2
