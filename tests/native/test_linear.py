"""Products of activations and packed weights, for every format, shape and instruction set.

What is expected is computed in float64 from the very numbers the kernel has: activations quantised as documented in
`csrc/kernels/operand.h`, weights as they unpack. That leaves fp32 rounding, so tolerances are those of fp32 sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from octavo.backends.native.instructions import Buffer, BufferKind, Linear, Quantize
from octavo.backends.native.library import Context, FloatArray, PackedWeight, supported_isas
from octavo.backends.native.lower import OPERAND_OF_LAYOUT
from octavo.quant.gguf import Layout, layout_of
from octavo.weights.gguf import GGUFType
from tests.native.harness import F32, OPERAND_INT8, Chunk, Step, random_tensor, run
from tests.native.test_weights import PLAIN, QUANTIZED, by_name, to_bf16

ROW_COUNTS = [0, 1, 2, 3, 5, 7, 16, 64, 100]
ONE_OF_EACH_LAYOUT = [
    (GGUFType.Q4_1, Layout.U4_GROUP),
    (GGUFType.Q4_K, Layout.U4_GROUP),
    (GGUFType.Q5_0, Layout.U8_GROUP),
    (GGUFType.Q6_K, Layout.U8_GROUP),
    (GGUFType.Q8_0, Layout.S8_GROUP),
    (GGUFType.F16, Layout.BF16),
]


def to_int8_groups(values: FloatArray) -> npt.NDArray[np.float64]:
    """Values as the INT8 operand holds them: codes -127..127, a step size of scale * (1..127) for each 16 columns."""
    halves = groups_of_32(values).reshape(len(values), -(-values.shape[1] // 32), 2, 16)
    largest = np.abs(halves).max(-1, keepdims=True)
    bits = (largest.max(2, keepdims=True) / np.float32(127 * 127)).view(np.uint32)
    scales = ((bits + 0xFF) & 0xFFFFFF00).astype(np.uint32).view(np.float32)  # rounded up to 16 significant bits
    factors = np.clip(np.ceil(largest * reciprocal(np.float32(127) * scales)), 1, 127).astype(np.float32)
    steps = scales * factors
    codes = np.rint(halves * reciprocal(steps))
    assert np.abs(codes).max(initial=0) <= 127
    return ungrouped(codes.astype(np.float64) * steps, values.shape[1])


def to_int16_groups(values: FloatArray) -> npt.NDArray[np.float64]:
    """Values as the INT16 operand holds them: codes -32767..32767 and a scale for each 32 columns."""
    groups = groups_of_32(values)
    largest = np.abs(groups).max(-1, keepdims=True)
    codes = np.rint(groups * (np.float32(32767) * reciprocal(largest)))
    return ungrouped(codes.astype(np.float64) * (largest / np.float32(32767)), values.shape[1])


def groups_of_32(values: FloatArray) -> FloatArray:
    num_groups = -(-values.shape[1] // 32)
    return np.pad(values, ((0, 0), (0, -values.shape[1] % 32))).reshape(len(values), num_groups, 32)


def ungrouped(groups: npt.NDArray[np.float64], num_columns: int) -> npt.NDArray[np.float64]:
    return groups.reshape(len(groups), -(-num_columns // 32) * 32)[:, :num_columns]


def reciprocal(values: FloatArray) -> FloatArray:
    return np.divide(np.float32(1), values, out=np.zeros_like(values), where=values > 0)


def operand_values(layout: Layout, values: FloatArray) -> npt.NDArray[np.float64]:
    match OPERAND_OF_LAYOUT[layout]:
        case BufferKind.OPERAND_INT8:
            return to_int8_groups(values)
        case BufferKind.OPERAND_INT16:
            return to_int16_groups(values)
        case _:
            return to_bf16(values).astype(np.float64)


def tokens(count: int) -> Step:
    return Step([Chunk(count)] if count else [])


def product(
    context: Context,
    x: FloatArray,
    weight: PackedWeight,
    *,
    bias: FloatArray | None = None,
    residual: FloatArray | None = None,
) -> FloatArray:
    num_columns, num_inputs = weight.shape
    operand = OPERAND_OF_LAYOUT[weight.layout]
    linear = Linear(1, 2, "w", num_columns, bias=None if bias is None else "b", accumulate=residual is not None)
    result = run(
        context,
        [Buffer(F32, num_inputs), Buffer(operand, num_inputs), Buffer(F32, num_columns)],
        [Quantize(0, 1), linear],
        tokens(len(x)),
        inputs={0: x} if residual is None else {0: x, 2: residual},
        weights={"w": weight},
        vectors={} if bias is None else {"b": bias},
    )
    return result.buffers[2]


def assert_is_product(found: FloatArray, x: FloatArray, weight: PackedWeight, added: FloatArray | float = 0.0) -> None:
    operand = operand_values(weight.layout, x)
    values = weight.unpack().astype(np.float64)
    expected = operand @ values.T + added
    # Rounding grows with the size of what is added up; a minimum or zero point is subtracted from larger numbers.
    codes = np.abs(values) + np.abs(values).max(-1, keepdims=True)
    size = np.abs(operand) @ codes.T + np.abs(added) + 1e-30
    assert np.all(np.abs(found - expected) <= 1e-5 * size), np.max(np.abs(found - expected) / size)


@pytest.mark.parametrize("encoding", PLAIN + QUANTIZED, ids=by_name)
def test_linear_is_the_product_for_every_number_of_rows(
    context: Context, encoding: GGUFType, rng: np.random.Generator
) -> None:
    num_inputs = 64 + 23 if encoding in PLAIN else 2 * encoding.block_size
    tensor = random_tensor(rng, encoding, (75, num_inputs), 0.1)
    for layout in {layout_of(encoding, "int8"), Layout.BF16}:
        weight = tensor.pack(context, layout)
        for num_rows in ROW_COUNTS:
            x = rng.normal(0, 1, (num_rows, num_inputs)).astype(np.float32)
            assert_is_product(product(context, x, weight), x, weight)


@pytest.mark.parametrize("num_columns", [1, 8, 31, 64, 65, 200])
@pytest.mark.parametrize(("encoding", "layout"), ONE_OF_EACH_LAYOUT, ids=by_name)
def test_linear_for_odd_numbers_of_columns_and_inputs(
    context: Context, encoding: GGUFType, layout: Layout, num_columns: int, rng: np.random.Generator
) -> None:
    widths = (1, 31, 33, 100) if encoding in PLAIN else (encoding.block_size, 3 * encoding.block_size)
    for num_inputs in widths:
        weight = random_tensor(rng, encoding, (num_columns, num_inputs)).pack(context, layout)
        x = rng.normal(0, 3, (7, num_inputs)).astype(np.float32)
        assert_is_product(product(context, x, weight), x, weight)


@pytest.mark.parametrize(("encoding", "layout"), ONE_OF_EACH_LAYOUT, ids=by_name)
def test_linear_adds_bias_and_residual(
    context: Context, encoding: GGUFType, layout: Layout, rng: np.random.Generator
) -> None:
    weight = random_tensor(rng, encoding, (83, 256)).pack(context, layout)
    x = rng.normal(0, 1, (11, 256)).astype(np.float32)
    bias = rng.normal(0, 5, 83).astype(np.float32)
    residual = rng.normal(0, 5, (11, 83)).astype(np.float32)
    assert_is_product(product(context, x, weight, bias=bias), x, weight, bias)
    assert_is_product(product(context, x, weight, residual=residual), x, weight, residual)
    assert_is_product(product(context, x, weight, bias=bias, residual=residual), x, weight, residual + bias)


def test_linear_writes_only_its_columns(context: Context, rng: np.random.Generator) -> None:
    weight = random_tensor(rng, GGUFType.Q4_1, (37, 64)).pack(context, Layout.U4_GROUP)
    x = rng.normal(0, 1, (9, 64)).astype(np.float32)
    result = run(
        context,
        [Buffer(F32, 64), Buffer(OPERAND_INT8, 64), Buffer(F32, 100)],
        [Quantize(0, 1), Linear(1, 2, "w", 37, dst_column=50)],
        tokens(9),
        inputs={0: x},
        weights={"w": weight},
    ).buffers[2]
    assert np.isnan(result[:, :50]).all() and np.isnan(result[:, 87:]).all()
    assert_is_product(result[:, 50:87], x, weight)


@pytest.mark.parametrize(("encoding", "layout"), ONE_OF_EACH_LAYOUT, ids=by_name)
def test_a_row_has_the_same_bits_whatever_the_batch(
    context: Context, encoding: GGUFType, layout: Layout, rng: np.random.Generator
) -> None:
    """The promise that a request gets the same tokens alone and in any batch rests on this."""
    weight = random_tensor(rng, encoding, (150, 768)).pack(context, layout)
    x = rng.normal(0, 1, (100, 768)).astype(np.float32)
    whole = product(context, x, weight)
    for first, count in [(0, 1), (99, 1), (3, 2), (10, 3), (20, 5), (31, 7), (40, 24), (1, 99)]:
        np.testing.assert_array_equal(product(context, x[first : first + count], weight), whole[first : first + count])


@pytest.mark.parametrize("encoding", QUANTIZED, ids=by_name)
def test_instruction_sets_and_teams_agree_to_the_bit(encoding: GGUFType, rng: np.random.Generator) -> None:
    """Products of int8 operands: so a machine with AVX-512 and one without give the same logits."""
    tensor = random_tensor(rng, encoding, (70, 512))
    x = rng.normal(0, 1, (13, 512)).astype(np.float32)
    results = []
    for isa, threads in [(isa, threads) for isa in supported_isas() for threads in (1, 4)]:
        context = Context(isa, threads)
        results.append(product(context, x, tensor.pack(context, layout_of(encoding, "int8"))))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_extreme_codes_do_not_overflow(context: Context) -> None:
    """The largest codes on both sides, which 16-bit partial sums could not hold if they were added up too long."""
    x = np.ones((6, 256), np.float32)
    for encoding in QUANTIZED:
        for weight in extreme_weights(context, encoding):
            for sign in (1, -1):
                assert_is_product(product(context, x * np.float32(sign), weight), x * np.float32(sign), weight)


def extreme_weights(context: Context, encoding: GGUFType) -> Sequence[PackedWeight]:
    """All codes at their least, and all at their greatest."""
    weights = []
    for byte in (0x00, 0x7F if encoding is GGUFType.Q8_0 else 0xFF, 0x80):
        blocks = np.full((40 * 256 // encoding.block_size, encoding.block_bytes), byte, np.uint8)
        one, none = np.float16(1).tobytes(), np.float16(0).tobytes()
        if encoding is GGUFType.Q6_K:
            blocks[:, 192:208] = 1
            blocks[:, 208:210] = np.frombuffer(one, np.uint8)
        elif encoding in (GGUFType.Q4_0, GGUFType.Q5_0, GGUFType.Q8_0):
            blocks[:, :2] = np.frombuffer(one, np.uint8)
        else:
            blocks[:, :4] = np.frombuffer(one + none, np.uint8)
        if encoding in (GGUFType.Q4_K, GGUFType.Q5_K):
            blocks[:, 4:16] = 0xFF
        weights.append(PackedWeight(context, layout_of(encoding, "int8"), encoding, (40, 256), blocks.reshape(-1)))
    return weights


def test_zeros_and_tiny_activations_stay_finite(context: Context, rng: np.random.Generator) -> None:
    weight = random_tensor(rng, GGUFType.Q4_0, (16, 64)).pack(context, Layout.U4_GROUP)
    x = np.zeros((3, 64), np.float32)
    x[1] = 1e-38
    x[2, 40] = 2.0
    found = product(context, x, weight)
    assert np.all(found[0] == 0) and np.all(np.abs(found[1]) < 1e-30)
    assert_is_product(found[2:], x[2:], weight)
