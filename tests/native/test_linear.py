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
from octavo.backends.native.lower import operand_kind
from octavo.quant.gguf import Layout, layout_of
from octavo.weights.gguf import GGUFType
from tests.native.harness import F32, OPERAND_INT8, Chunk, Step, random_tensor, run
from tests.native.test_weights import PLAIN, QUANTIZED, by_name, to_bf16

ROW_COUNTS = [0, 1, 2, 3, 5, 7, 16, 64, 100]
ONE_OF_EACH_LAYOUT = [
    (GGUFType.Q4_1, Layout.GROUPED),
    (GGUFType.Q4_K, Layout.GROUPED),
    (GGUFType.Q5_0, Layout.GROUPED),
    (GGUFType.Q6_K, Layout.GROUPED),
    (GGUFType.Q8_0, Layout.GROUPED),
    (GGUFType.IQ4_NL, Layout.GROUPED),
    (GGUFType.F16, Layout.BF16),
    (GGUFType.BF16, Layout.GROUPED),
    (GGUFType.F32, Layout.INT8_CHANNEL),
]
OUTLIER_ABOVE = 1.4  # times the average of what is largest in each group of the row
MOST_HALVINGS = 20


def to_int8_groups(values: FloatArray) -> npt.NDArray[np.float64]:
    """Values as the INT8 operand holds them: codes -127..127 and a scale for each 32 columns."""
    codes, scales = int8_codes(values)
    return ungrouped(codes * scales, values.shape[1])


def to_int8_groups_and_outliers(values: FloatArray) -> npt.NDArray[np.float64]:
    """Values as the INT8_OUTLIERS operand holds them: the outliers as they are, the others as if those were zero.

    The others are codes times the scale that fits values up to the bound of outliers, halved as often as their group
    allows.
    """
    groups = groups_of_32(values)
    total = np.abs(groups).max(-1).cumsum(-1, dtype=np.float32)[:, -1]  # added up one by one, as the kernel does
    bound = (np.float32(OUTLIER_ABOVE) / np.float32(groups.shape[1]) * total)[:, None, None]
    outliers = np.where(np.abs(groups) > bound, groups, np.float32(0))
    rest = groups - outliers
    largest = np.abs(rest).max(-1, keepdims=True)
    log2_of_ratio = (bound.view(np.int32) - largest.view(np.int32)) >> 23  # its whole part, from the exponents
    halvings = np.clip(log2_of_ratio, 0, MOST_HALVINGS)
    codes = np.rint(rest * np.ldexp(quotient(127, bound), halvings))
    assert np.abs(codes).max(initial=0) <= 127
    scales = np.ldexp(bound * np.float32(1 / 127), -halvings)
    return ungrouped(outliers.astype(np.float64) + codes * scales, values.shape[1])


def int8_codes(values: FloatArray) -> tuple[npt.NDArray[np.float64], FloatArray]:
    groups = groups_of_32(values)
    largest = np.abs(groups).max(-1, keepdims=True)
    codes = np.rint(groups * quotient(127, largest))
    assert np.abs(codes).max(initial=0) <= 127
    return codes.astype(np.float64), (largest * np.float32(1 / 127)).astype(np.float32)


def groups_of_32(values: FloatArray) -> FloatArray:
    num_groups = -(-values.shape[1] // 32)
    return np.pad(values, ((0, 0), (0, -values.shape[1] % 32))).reshape(len(values), num_groups, 32)


def ungrouped(groups: npt.NDArray[np.float64], num_columns: int) -> npt.NDArray[np.float64]:
    return groups.reshape(len(groups), -(-num_columns // 32) * 32)[:, :num_columns]


def quotient(dividend: float, values: FloatArray) -> FloatArray:
    return np.divide(np.float32(dividend), values, out=np.zeros_like(values), where=values > 0)


def to_int8_rows(values: FloatArray) -> npt.NDArray[np.float64]:
    """Values as the INT8_ROW operand holds them: codes -127..127 and one scale a row."""
    largest = np.abs(values).max(-1, keepdims=True, initial=0)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(values * inverse)
    return codes.astype(np.float64) * (largest * np.float32(1 / 127))


def operand_values(kind: BufferKind, values: FloatArray) -> npt.NDArray[np.float64]:
    match kind:
        case BufferKind.OPERAND_INT8_ROW:
            return to_int8_rows(values)
        case BufferKind.OPERAND_INT8:
            return to_int8_groups(values)
        case BufferKind.OPERAND_INT8_OUTLIERS:
            return to_int8_groups_and_outliers(values)
        case _:
            return to_bf16(values).astype(np.float64)


def with_outliers(rng: np.random.Generator, shape: tuple[int, int], scale: float = 1.0) -> FloatArray:
    """Activations as norms give them: a few columns are far larger than the rest, in most rows."""
    x = rng.normal(0, scale, shape)
    columns = rng.choice(shape[1], max(1, shape[1] // 100), replace=False)
    x[:, columns] *= rng.choice([1, 10, 30], (shape[0], len(columns)))
    return x.astype(np.float32)


def tokens(count: int) -> Step:
    return Step([Chunk(count)] if count else [])


def product(
    context: Context,
    x: FloatArray,
    weight: PackedWeight,
    *,
    bias: FloatArray | None = None,
    residual: FloatArray | None = None,
    outliers: bool = True,
) -> FloatArray:
    num_columns, num_inputs = weight.shape
    operand = operand_kind(weight.layout, outliers=outliers)
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


def assert_is_product(
    found: FloatArray, x: FloatArray, weight: PackedWeight, added: FloatArray | float = 0.0, *, outliers: bool = True
) -> None:
    operand = operand_values(operand_kind(weight.layout, outliers=outliers), x)
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
            x = with_outliers(rng, (num_rows, num_inputs))
            for outliers in (False, True):
                assert_is_product(product(context, x, weight, outliers=outliers), x, weight, outliers=outliers)


@pytest.mark.parametrize(("encoding", "layout"), ONE_OF_EACH_LAYOUT, ids=by_name)
def test_more_rows_than_go_through_the_weights_at_once(
    context: Context, encoding: GGUFType, layout: Layout, rng: np.random.Generator
) -> None:
    """192 rows at most do; a step has 512 by default."""
    weight = random_tensor(rng, encoding, (75, 256)).pack(context, layout)
    for num_rows in (193, 512):
        x = with_outliers(rng, (num_rows, 256))
        assert_is_product(product(context, x, weight), x, weight)


@pytest.mark.parametrize("num_columns", [1, 8, 31, 64, 65, 200])
@pytest.mark.parametrize(("encoding", "layout"), ONE_OF_EACH_LAYOUT, ids=by_name)
def test_linear_for_odd_numbers_of_columns_and_inputs(
    context: Context, encoding: GGUFType, layout: Layout, num_columns: int, rng: np.random.Generator
) -> None:
    widths = (1, 31, 33, 100) if encoding in PLAIN else (encoding.block_size, 3 * encoding.block_size)
    for num_inputs in widths:
        weight = random_tensor(rng, encoding, (num_columns, num_inputs)).pack(context, layout)
        x = with_outliers(rng, (7, num_inputs), 3)
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
    weight = random_tensor(rng, GGUFType.Q4_1, (37, 64)).pack(context, Layout.GROUPED)
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
    assert_is_product(result[:, 50:87], x, weight, outliers=False)


@pytest.mark.parametrize(("encoding", "layout"), ONE_OF_EACH_LAYOUT, ids=by_name)
def test_a_row_has_the_same_bits_whatever_the_batch(
    context: Context, encoding: GGUFType, layout: Layout, rng: np.random.Generator
) -> None:
    """The promise that a request gets the same tokens alone and in any batch rests on this."""
    weight = random_tensor(rng, encoding, (150, 768)).pack(context, layout)
    x = with_outliers(rng, (100, 768))
    for outliers in (False, True):
        whole = product(context, x, weight, outliers=outliers)
        for first, count in [(0, 1), (99, 1), (3, 2), (10, 3), (20, 5), (31, 7), (40, 24), (1, 99)]:
            part = product(context, x[first : first + count], weight, outliers=outliers)
            np.testing.assert_array_equal(part, whole[first : first + count])


def test_panels_beyond_the_cache_give_the_same_bits_as_one_sweep(context: Context, rng: np.random.Generator) -> None:
    """Several tiles of rows share such a panel in parts along K; a row alone goes through it in one go."""
    num_inputs = 33_000  # beyond the second-level cache for the narrowest panels, the portable build's
    weight = random_tensor(rng, GGUFType.BF16, (75, num_inputs), 0.1).pack(context, Layout.BF16)
    x = with_outliers(rng, (13, num_inputs))
    bias = rng.normal(0, 5, 75).astype(np.float32)
    residual = rng.normal(0, 5, (13, 75)).astype(np.float32)
    whole = product(context, x, weight, bias=bias, residual=residual)
    assert_is_product(whole, x, weight, residual + bias)
    for row in range(13):
        alone = product(context, x[row : row + 1], weight, bias=bias, residual=residual[row : row + 1])
        np.testing.assert_array_equal(alone[0], whole[row])


@pytest.mark.parametrize("encoding", QUANTIZED, ids=by_name)
def test_instruction_sets_and_teams_agree_to_the_bit(encoding: GGUFType, rng: np.random.Generator) -> None:
    """Products of int8 operands: so a machine with AVX-512 and one without give the same logits."""
    tensor = random_tensor(rng, encoding, (70, 512))
    x = with_outliers(rng, (13, 512))
    for outliers in (False, True):
        results = []
        for isa, threads in [(isa, threads) for isa in supported_isas() for threads in (1, 4)]:
            context = Context(isa, threads)
            weight = tensor.pack(context, layout_of(encoding, "int8"))
            results.append(product(context, x, weight, outliers=outliers))
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


def test_extreme_codes_do_not_overflow(context: Context) -> None:
    """The largest codes on both sides, which 16-bit partial sums could not hold if they were added up too long."""
    x = np.ones((6, 256), np.float32)
    for encoding in QUANTIZED:
        for weight in extreme_weights(context, encoding):
            for sign in (np.float32(1), np.float32(-1)):
                assert_is_product(product(context, x * sign, weight, outliers=False), x * sign, weight, outliers=False)


def test_outliers_are_exact(context: Context, rng: np.random.Generator) -> None:
    """One large column would make the scale of its whole group coarse; apart, it costs as much as if it were not there.

    Not quite: scales are halved from a bound that the column raises, so one may be up to twice as coarse.
    """
    weight = random_tensor(rng, GGUFType.Q8_0, (33, 256)).pack(context, Layout.GROUPED)
    x = rng.normal(0, 1, (9, 256)).astype(np.float32)
    x[:, 70] = 0

    def error(x: FloatArray, *, outliers: bool) -> float:
        exact = x.astype(np.float64) @ weight.unpack().astype(np.float64).T
        return float(np.abs(product(context, x, weight, outliers=outliers) - exact).mean())

    without = error(x, outliers=True)
    x[:, 70] = 100
    assert error(x, outliers=True) < 2 * without
    assert error(x, outliers=False) > 4 * without


@pytest.mark.parametrize(("encoding", "layout"), ONE_OF_EACH_LAYOUT, ids=by_name)
def test_outliers_of_one_row_do_not_touch_another(
    context: Context, encoding: GGUFType, layout: Layout, rng: np.random.Generator
) -> None:
    """Rows of a tile share the columns that are outliers in any of them: here another one in each, and whole groups."""
    num_inputs = 8 * 32 + 23 if encoding in PLAIN else 2 * max(encoding.block_size, 128)
    weight = random_tensor(rng, encoding, (70, num_inputs)).pack(context, layout)
    x = rng.normal(0, 1, (11, num_inputs)).astype(np.float32)
    for row in range(len(x)):
        x[row, rng.choice(num_inputs, 3)] *= 40
    x[1] = 0
    x[2, 32:64] = 50
    x[3, -1] = -60
    x[4, [0, 31, 32, 63]] = 1e30
    together = product(context, x, weight)
    for row in range(len(x)):
        alone = product(context, x[row : row + 1], weight)
        np.testing.assert_array_equal(alone[0], together[row])
        assert_is_product(alone, x[row : row + 1], weight)


def test_a_row_that_is_not_finite_does_not_touch_another(context: Context, rng: np.random.Generator) -> None:
    weight = random_tensor(rng, GGUFType.Q4_1, (40, 256)).pack(context, Layout.GROUPED)
    x = with_outliers(rng, (6, 256))
    clean = product(context, x, weight)
    x[2, 5], x[4, 100] = np.inf, np.nan
    for row in (0, 1, 3, 5):
        np.testing.assert_array_equal(product(context, x, weight)[row], clean[row])


def extreme_weights(context: Context, encoding: GGUFType) -> Sequence[PackedWeight]:
    """All codes at their least, and all at their greatest."""
    weights = []
    for byte in (0x00, 0x7F if encoding is GGUFType.Q8_0 else 0xFF, 0x80):
        blocks = np.full((40 * 256 // encoding.block_size, encoding.block_bytes), byte, np.uint8)
        one, none = np.float16(1).tobytes(), np.float16(0).tobytes()
        if encoding is GGUFType.Q6_K:
            blocks[:, 192:208] = 1
            blocks[:, 208:210] = np.frombuffer(one, np.uint8)
        elif encoding is GGUFType.MXFP4:
            blocks[:, 0] = 128  # a scale of 1
        elif encoding in (GGUFType.Q4_0, GGUFType.Q5_0, GGUFType.Q8_0, GGUFType.IQ4_NL, GGUFType.IQ4_XS):
            blocks[:, :2] = np.frombuffer(one, np.uint8)
        else:
            blocks[:, :4] = np.frombuffer(one + none, np.uint8)
        if encoding in (GGUFType.Q4_K, GGUFType.Q5_K):
            blocks[:, 4:16] = 0xFF
        weights.append(PackedWeight(context, layout_of(encoding, "int8"), encoding, (40, 256), blocks.reshape(-1)))
    return weights


def test_zeros_and_tiny_activations_stay_finite(context: Context, rng: np.random.Generator) -> None:
    weight = random_tensor(rng, GGUFType.Q4_0, (16, 64)).pack(context, Layout.GROUPED)
    x = np.zeros((3, 64), np.float32)
    x[1] = 1e-38
    x[2, 40] = 2.0
    found = product(context, x, weight)
    assert np.all(found[0] == 0) and np.all(np.abs(found[1]) < 1e-30)
    assert_is_product(found[2:], x[2:], weight)
