"""RMS norm: to fp32, added to fp32, and to both kinds of operand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backends.native.instructions import Buffer, BufferKind, Linear, Quantize, RmsNorm
from octavo.backends.native.library import Context, FloatArray
from octavo.quant.gguf import Layout
from octavo.weights.gguf import GGUFType
from tests.native.harness import F32, OPERAND_BF16, OPERAND_INT8, OPERAND_INT8_OUTLIERS, Chunk, Step, random_tensor, run
from tests.native.reference import rms_norm

EPSILON = 1e-5


def normal(rng: np.random.Generator, *shape: int) -> FloatArray:
    return rng.standard_normal(shape).astype(np.float32)


def step_of(num_tokens: int) -> Step:
    return Step([Chunk(num_tokens)] if num_tokens else [])


def expected(x: FloatArray, weight: FloatArray) -> torch.Tensor:
    return rms_norm(torch.from_numpy(x).double(), torch.from_numpy(weight).double(), EPSILON)


@pytest.mark.parametrize("columns", [1, 7, 64, 100, 576, 4099])
def test_norm_to_fp32(context: Context, columns: int, rng: np.random.Generator) -> None:
    weight = normal(rng, columns)
    for num_tokens in (0, 1, 2, 5):
        x = normal(rng, num_tokens, columns) * np.float32(30)
        operations = [RmsNorm(0, 1, "w", EPSILON)]
        result = run(
            context,
            [Buffer(F32, columns), Buffer(F32, columns)],
            operations,
            step_of(num_tokens),
            inputs={0: x},
            vectors={"w": weight},
        )
        np.testing.assert_allclose(result.buffers[1], expected(x, weight).numpy(), rtol=2e-6)


def test_norm_adds_to_fp32(context: Context, rng: np.random.Generator) -> None:
    x, y, weight = normal(rng, 5, 100), normal(rng, 5, 100), normal(rng, 100)
    result = run(
        context,
        [Buffer(F32, 100), Buffer(F32, 100)],
        [RmsNorm(0, 1, "w", EPSILON, accumulate=True)],
        step_of(5),
        inputs={0: x, 1: y},
        vectors={"w": weight},
    )
    np.testing.assert_allclose(result.buffers[1], y + expected(x, weight).numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", [OPERAND_INT8, OPERAND_INT8_OUTLIERS])
@pytest.mark.parametrize("columns", [32, 96, 576])
def test_norm_to_operands_is_norm_then_quantize(
    context: Context, columns: int, kind: BufferKind, rng: np.random.Generator
) -> None:
    x, vector = normal(rng, 5, columns), normal(rng, columns)
    grouped = random_tensor(rng, GGUFType.Q5_0, (17, columns)).pack(context, Layout.GROUPED)
    plain = random_tensor(rng, GGUFType.BF16, (17, columns)).pack(context, Layout.BF16)
    buffers = [Buffer(F32, columns), Buffer(kind, columns), Buffer(OPERAND_BF16, columns)]
    buffers += [Buffer(F32, columns), Buffer(F32, 17), Buffer(F32, 17)]
    products = [Linear(1, 4, "grouped", 17), Linear(2, 5, "plain", 17)]
    weights, vectors = {"grouped": grouped, "plain": plain}, {"w": vector}
    fused = run(
        context,
        buffers,
        [RmsNorm(0, 1, "w", EPSILON, dst2=2), *products],
        step_of(5),
        inputs={0: x},
        weights=weights,
        vectors=vectors,
    )
    apart = run(
        context,
        buffers,
        [RmsNorm(0, 3, "w", EPSILON), Quantize(3, 1), Quantize(3, 2), *products],
        step_of(5),
        inputs={0: x},
        weights=weights,
        vectors=vectors,
    )
    np.testing.assert_array_equal(fused.buffers[4], apart.buffers[4])
    np.testing.assert_array_equal(fused.buffers[5], apart.buffers[5])


def test_norm_of_a_row_does_not_depend_on_the_batch(context: Context, rng: np.random.Generator) -> None:
    x, weight = normal(rng, 23, 577), normal(rng, 577)
    buffers, operations = [Buffer(F32, 577), Buffer(F32, 577)], [RmsNorm(0, 1, "w", EPSILON)]
    together = run(context, buffers, operations, step_of(23), inputs={0: x}, vectors={"w": weight}).buffers[1]
    for row in (0, 11, 22):
        alone = run(context, buffers, operations, step_of(1), inputs={0: x[row : row + 1]}, vectors={"w": weight})
        np.testing.assert_array_equal(alone.buffers[1][0], together[row])


def test_norm_of_zeros_is_zero(context: Context) -> None:
    result = run(
        context,
        [Buffer(F32, 40), Buffer(F32, 40)],
        [RmsNorm(0, 1, "w", EPSILON)],
        step_of(3),
        inputs={0: np.zeros((3, 40), np.float32)},
        vectors={"w": np.ones(40, np.float32)},
    )
    np.testing.assert_array_equal(result.buffers[1], 0)
