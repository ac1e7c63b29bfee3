"""Gated products: activation(x @ gate.T) * (x @ up.T), to fp32 and straight to an operand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backends.native.instructions import Buffer, BufferKind, GatedLinear, Linear, Operation, Quantize
from octavo.backends.native.library import Context, FloatArray, PackedWeight
from octavo.backends.native.lower import operand_kind
from octavo.graph.ops import GatedActivation
from octavo.quant.gguf import Layout, layout_of
from octavo.weights.gguf import GGUFType
from tests.native.harness import F32, OPERAND_BF16, OPERAND_INT8, random_tensor, run
from tests.native.test_linear import ONE_OF_EACH_LAYOUT, operand_values, tokens
from tests.native.test_weights import by_name

ACTIVATIONS: tuple[GatedActivation, ...] = ("silu", "gelu_tanh")


def operand_of(weight: PackedWeight) -> BufferKind:
    return operand_kind(weight.layout, outliers=True)


def gated(
    context: Context, x: FloatArray, gate: PackedWeight, up: PackedWeight, activation: GatedActivation
) -> FloatArray:
    num_columns, num_inputs = gate.shape
    result = run(
        context,
        [Buffer(F32, num_inputs), Buffer(operand_of(gate), num_inputs), Buffer(operand_of(up), num_inputs),
         Buffer(F32, num_columns)],
        [Quantize(0, 1), Quantize(0, 2), GatedLinear(1, 3, "gate", "up", activation, src_up=2)],
        tokens(len(x)),
        inputs={0: x},
        weights={"gate": gate, "up": up},
    )  # fmt: skip
    return result.buffers[3]


def assert_is_gated(
    found: FloatArray, x: FloatArray, gate: PackedWeight, up: PackedWeight, activation: GatedActivation
) -> None:
    """Each product is off by 1e-6 of the sum of its terms' magnitudes, however much they cancel."""
    act = torch.nn.SiLU() if activation == "silu" else torch.nn.GELU(approximate="tanh")
    factors, errors = [], []
    for weight in (gate, up):
        values, columns = operand_values(operand_of(weight), x), weight.unpack().astype(np.float64).T
        factors.append(torch.from_numpy(values @ columns))
        errors.append(1e-6 * (np.abs(values) @ np.abs(columns)))
    gates, ups = act(factors[0]).numpy(), factors[1].numpy()
    expected = gates * ups
    allowed = 1.2 * errors[0] * np.abs(ups) + np.abs(gates) * errors[1] + 1e-4 * np.abs(expected)
    np.testing.assert_array_less(np.abs(found - expected), allowed + 1e-30)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("encoding", "layout"), ONE_OF_EACH_LAYOUT, ids=by_name)
def test_gated_linear(
    context: Context, encoding: GGUFType, layout: Layout, activation: GatedActivation, rng: np.random.Generator
) -> None:
    for num_columns in (5, 64, 97):
        tensors = [random_tensor(rng, encoding, (num_columns, 256), 0.1) for _ in range(2)]
        gate, up = (tensor.pack(context, layout) for tensor in tensors)
        for num_rows in (0, 1, 6, 20, 200):
            x = rng.normal(0, 1, (num_rows, 256)).astype(np.float32)
            assert_is_gated(gated(context, x, gate, up, activation), x, gate, up, activation)


def test_gate_and_up_may_differ_in_layout(context: Context, rng: np.random.Generator) -> None:
    layouts = (GGUFType.Q4_1, GGUFType.Q8_0, GGUFType.BF16)
    for first, second in [(layouts[i], layouts[j]) for i in range(3) for j in range(3) if i != j]:
        gate = random_tensor(rng, first, (75, 96), 0.1).pack(context, layout_of(first, "int8"))
        up = random_tensor(rng, second, (75, 96), 0.1).pack(context, layout_of(second, "int8"))
        x = rng.normal(0, 1, (8, 96)).astype(np.float32)
        assert_is_gated(gated(context, x, gate, up, "silu"), x, gate, up, "silu")


@pytest.mark.parametrize(
    ("kind", "num_columns"),
    [
        (OPERAND_INT8, 64),
        (OPERAND_INT8, 160),
        (OPERAND_BF16, 20),
        (OPERAND_BF16, 64),
        (OPERAND_BF16, 100),
    ],
)
def test_an_operand_destination_holds_what_quantising_the_fp32_one_would(
    context: Context, kind: BufferKind, num_columns: int, rng: np.random.Generator
) -> None:
    gate, up = (random_tensor(rng, GGUFType.Q4_1, (num_columns, 64)).pack(context, Layout.GROUPED) for _ in range(2))
    encoding = GGUFType.Q5_0 if kind is OPERAND_INT8 else GGUFType.F32
    reader = random_tensor(rng, encoding, (48, num_columns)).pack(context, layout_of(encoding, "int8"))
    x = rng.normal(0, 1, (9, 64)).astype(np.float32)
    buffers = [
        Buffer(F32, 64),
        Buffer(OPERAND_INT8, 64),
        Buffer(F32, num_columns),
        Buffer(kind, num_columns),
        Buffer(kind, num_columns),
        Buffer(F32, 48),
        Buffer(F32, 48),
    ]
    operations: list[Operation] = [
        Quantize(0, 1),
        GatedLinear(1, 2, "gate", "up", "silu"),
        Quantize(2, 3),
        Linear(3, 5, "reader", 48),
        GatedLinear(1, 4, "gate", "up", "silu"),
        Linear(4, 6, "reader", 48),
    ]
    found = run(
        context, buffers, operations, tokens(9), inputs={0: x}, weights={"gate": gate, "up": up, "reader": reader}
    )
    np.testing.assert_array_equal(found.buffers[6], found.buffers[5])


def test_large_gates_saturate(context: Context) -> None:
    """exp of a large gate overflows if done carelessly, and x * sigmoid(x) becomes NaN."""
    gate = np.zeros((4, 32), np.float32)
    gate[:, 0] = [1e4, -1e4, 200, -200]
    up = np.zeros((4, 32), np.float32)
    up[:, 1] = 1
    x = np.zeros((1, 32), np.float32)
    x[:, :2] = 1
    weights = [
        PackedWeight(context, Layout.BF16, GGUFType.F32, (4, 32), np.frombuffer(w.tobytes(), np.uint8))
        for w in (gate, up)
    ]
    for activation in ACTIVATIONS:
        found = gated(context, x, weights[0], weights[1], activation)
        np.testing.assert_allclose(found, [[9984, 0, 200, 0]], atol=1e-30)
