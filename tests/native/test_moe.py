"""Mixtures of experts against torch in float64, and that what a row gets depends on that row alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backends.native.instructions import Buffer, Moe, expert_weight
from octavo.backends.native.library import Context, FloatArray, PackedWeight
from octavo.backends.native.lower import operand_kind
from octavo.errors import EngineError
from octavo.quant.gguf import Layout, layout_of
from octavo.weights.gguf import GGUFType
from tests.native.harness import F32, random_tensor, run
from tests.native.test_linear import operand_values, tokens
from tests.native.test_weights import by_name

COLUMNS, WIDTH = 96, 160


class Experts:
    """Random experts in one layout, and the same computed plainly on the numbers the kernels have."""

    def __init__(
        self,
        context: Context,
        rng: np.random.Generator,
        encodings: GGUFType | tuple[GGUFType, GGUFType, GGUFType],
        num_experts: int,
        num_active: int,
    ) -> None:
        """`encodings` are those of gates, ups and downs, or of all."""
        names = ("gate", "up", "down")
        types = (encodings,) * 3 if isinstance(encodings, GGUFType) else encodings
        self.context = context
        self.encodings = dict(zip(names, types, strict=True))
        self.layouts = {name: layout_of(encoding, "int8") for name, encoding in self.encodings.items()}
        self.num_experts, self.num_active = num_experts, num_active
        self.router = rng.normal(0, 0.3, (num_experts, COLUMNS)).astype(np.float32)
        shapes = {"gate": (WIDTH, COLUMNS), "up": (WIDTH, COLUMNS), "down": (COLUMNS, WIDTH)}
        self.weights: dict[str, PackedWeight] = {
            expert_weight(name, expert): self._random(rng, name, shape)
            for name, shape in shapes.items()
            for expert in range(num_experts)
        }

    def _random(self, rng: np.random.Generator, name: str, shape: tuple[int, int]) -> PackedWeight:
        return random_tensor(rng, self.encodings[name], shape, 0.2).pack(self.context, self.layouts[name])

    def run(self, x: FloatArray, *, renormalise: bool = True, residual: FloatArray | None = None) -> FloatArray:
        operation = Moe(
            0, 1, "router", "gate", "up", "down",
            num_experts=self.num_experts, num_active=self.num_active, renormalise=renormalise, activation="silu",
            accumulate=residual is not None,
        )  # fmt: skip
        return run(
            self.context,
            [Buffer(F32, COLUMNS), Buffer(F32, COLUMNS)],
            [operation],
            tokens(len(x)),
            inputs={0: x} if residual is None else {0: x, 1: residual},
            weights=self.weights,
            vectors={"router": self.router.reshape(-1)},
        ).buffers[1]

    def expected(self, x: FloatArray, *, renormalise: bool = True) -> np.ndarray:
        probabilities = torch.softmax(torch.from_numpy(x).double() @ torch.from_numpy(self.router).double().T, -1)
        shares, chosen = probabilities.topk(self.num_active)
        if renormalise:
            shares = shares / shares.sum(-1, keepdim=True)
        gate_inputs, up_inputs = (
            torch.from_numpy(operand_values(operand_kind(self.layouts[name], outliers=True), x))
            for name in ("gate", "up")
        )
        result = torch.zeros(len(x), COLUMNS, dtype=torch.float64)
        for row in range(len(x)):
            for share, expert in zip(shares[row], chosen[row].tolist(), strict=True):
                gate, up, down = (self._values(name, expert) for name in ("gate", "up", "down"))
                inner = torch.nn.functional.silu(gate @ gate_inputs[row]) * (up @ up_inputs[row])
                inner_kind = operand_kind(self.layouts["down"], outliers=False)
                inner_values = operand_values(inner_kind, inner.float().numpy()[None])
                result[row] += share * (down @ torch.from_numpy(inner_values)[0])
        return result.numpy()

    def _values(self, name: str, expert: int) -> torch.Tensor:
        return torch.from_numpy(self.weights[expert_weight(name, expert)].unpack()).double()


def assert_close(found: FloatArray, expected: np.ndarray) -> None:
    """A code of what lies between the products may fall on the other side of a half: a step of one value of many."""
    size = np.abs(expected).max(initial=1e-30)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=5e-3 * size)


@pytest.mark.parametrize("encoding", [GGUFType.Q4_1, GGUFType.Q8_0, GGUFType.BF16], ids=by_name)
@pytest.mark.parametrize(("num_experts", "num_active"), [(1, 1), (5, 2), (8, 8), (60, 4)])
def test_moe(context: Context, encoding: GGUFType, num_experts: int, num_active: int, rng: np.random.Generator) -> None:
    experts = Experts(context, rng, encoding, num_experts, num_active)
    for num_rows in (0, 1, 2, 7, 30):
        x = rng.normal(0, 1, (num_rows, COLUMNS)).astype(np.float32)
        for renormalise in (True, False):
            assert_close(experts.run(x, renormalise=renormalise), experts.expected(x, renormalise=renormalise))


@pytest.mark.parametrize(
    "encodings",
    [
        (GGUFType.Q4_1, GGUFType.BF16, GGUFType.Q8_0),
        (GGUFType.BF16, GGUFType.Q4_1, GGUFType.F16),
        (GGUFType.Q4_0, GGUFType.Q5_0, GGUFType.F32),
    ],
    ids=lambda encodings: "-".join(map(by_name, encodings)),
)
def test_gates_ups_and_downs_may_differ_in_layout(
    context: Context, encodings: tuple[GGUFType, GGUFType, GGUFType], rng: np.random.Generator
) -> None:
    experts = Experts(context, rng, encodings, 5, 2)
    for num_rows in (1, 30, 250):
        x = rng.normal(0, 1, (num_rows, COLUMNS)).astype(np.float32)
        assert_close(experts.run(x), experts.expected(x))


def test_moe_adds_to_the_residual(context: Context, rng: np.random.Generator) -> None:
    experts = Experts(context, rng, GGUFType.BF16, 4, 2)
    x, residual = (rng.normal(0, 1, (9, COLUMNS)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(experts.run(x, residual=residual), residual + experts.run(x))


@pytest.mark.parametrize("encoding", [GGUFType.Q4_1, GGUFType.BF16], ids=by_name)
def test_a_row_has_the_same_bits_whatever_the_batch(
    context: Context, encoding: GGUFType, rng: np.random.Generator
) -> None:
    experts = Experts(context, rng, encoding, 6, 2)
    x = rng.normal(0, 1, (50, COLUMNS)).astype(np.float32)
    whole = experts.run(x)
    for first, count in [(0, 1), (49, 1), (3, 2), (10, 13), (1, 49)]:
        np.testing.assert_array_equal(experts.run(x[first : first + count]), whole[first : first + count])


def test_rows_that_are_no_numbers_stay_within_the_experts(context: Context, rng: np.random.Generator) -> None:
    """A choice by comparison alone would leave the expert of a NaN unset, and read past the weights."""
    experts = Experts(context, rng, GGUFType.BF16, 4, 2)
    x = rng.normal(0, 1, (5, COLUMNS)).astype(np.float32)
    clean = experts.run(x)
    x[2] = np.nan
    found = experts.run(x)
    np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(clean, 2, 0))


def test_moe_that_cannot_be_right_is_refused(rng: np.random.Generator) -> None:
    context = Context("scalar")
    experts = Experts(context, rng, GGUFType.BF16, 3, 4)
    with pytest.raises(EngineError, match=r"moe.*num_active is 4 of 3 experts"):
        experts.run(np.zeros((1, COLUMNS), np.float32))
    experts = Experts(context, rng, GGUFType.BF16, 3, 2)
    odd = random_tensor(rng, GGUFType.F32, (WIDTH, COLUMNS + 1)).pack(context, Layout.BF16)
    experts.weights[expert_weight("up", 2)] = odd
    with pytest.raises(EngineError, match=r"moe.*ups are not all of one shape"):
        experts.run(np.zeros((1, COLUMNS), np.float32))
