"""GGUF blocks decode as the `gguf` package decodes them, and packed weights give those values back."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from octavo.backends.native import library
from octavo.backends.native.library import Context, FloatArray, PackedWeight, dequantize
from octavo.quant.gguf import Layout, layout_of
from octavo.weights.gguf import GGUFType
from tests.native.harness import RandomTensor, random_tensor

PLAIN = (GGUFType.F32, GGUFType.F16, GGUFType.BF16)
BLOCKS_OF_32 = (
    GGUFType.Q4_0,
    GGUFType.Q4_1,
    GGUFType.Q5_0,
    GGUFType.Q5_1,
    GGUFType.Q8_0,
    GGUFType.IQ4_NL,
    GGUFType.MXFP4,
)
BLOCKS_OF_256 = (GGUFType.Q4_K, GGUFType.Q5_K, GGUFType.Q6_K, GGUFType.IQ4_XS)
WITHOUT_MINIMUM = (GGUFType.Q6_K, GGUFType.IQ4_XS)
QUANTIZED = BLOCKS_OF_32 + BLOCKS_OF_256


def by_name(encoding: object) -> str:
    return encoding.name if isinstance(encoding, GGUFType) else str(encoding)


def to_bf16(values: FloatArray) -> FloatArray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def columns_of(encoding: GGUFType) -> tuple[int, ...]:
    """Widths a tensor of this type can have, odd where it can be odd."""
    if encoding in PLAIN:
        return (1, 33, 64, 259)
    return (encoding.block_size, 3 * encoding.block_size)


@pytest.mark.parametrize("encoding", PLAIN + QUANTIZED, ids=by_name)
def test_blocks_decode_to_the_values_of_the_gguf_package(encoding: GGUFType, rng: np.random.Generator) -> None:
    tensor = random_tensor(rng, encoding, (5, columns_of(encoding)[-1]))
    np.testing.assert_array_equal(dequantize(encoding, tensor.data, tensor.values.size), tensor.values.reshape(-1))


@pytest.mark.parametrize("encoding", PLAIN + QUANTIZED, ids=by_name)
def test_every_block_pattern_decodes(encoding: GGUFType, rng: np.random.Generator) -> None:
    """Random bytes, so that every bit of a block is used; scales that are not finite are left out."""
    tensor = random_tensor(rng, encoding, (1, 64 * max(32, encoding.block_size)))
    data = rng.integers(0, 256, tensor.data.size, dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(encoding)).astype(np.float32)
    found = dequantize(encoding, data, expected.size)
    finite = np.isfinite(expected) & (np.abs(expected) < 1e30)
    assert finite.mean() > 0.3
    np.testing.assert_array_equal(found[finite], expected[finite])


@pytest.mark.parametrize("num_rows", [1, 7, 64, 101])
@pytest.mark.parametrize("encoding", PLAIN + QUANTIZED, ids=by_name)
def test_packed_weights_unpack_to_their_values(
    context: Context, encoding: GGUFType, num_rows: int, rng: np.random.Generator
) -> None:
    for num_columns in columns_of(encoding):
        tensor = random_tensor(rng, encoding, (num_rows, num_columns))
        assert_unpacks(context, tensor, layout_of(encoding, "int8"))
        assert_unpacks(context, tensor, Layout.BF16)


def assert_unpacks(context: Context, tensor: RandomTensor, layout: Layout) -> None:
    found = tensor.pack(context, layout).unpack()
    if layout is Layout.BF16:
        np.testing.assert_array_equal(found, to_bf16(tensor.values))
    elif tensor.encoding in BLOCKS_OF_32:
        np.testing.assert_array_equal(found, tensor.values)
    else:  # scales and minimums of the K types are rounded to fp16, by half a unit in the last place of 11 bits
        minimums = minimums_of(tensor)
        parts = np.abs(tensor.values + minimums) + minimums  # of value = scale * code - minimum
        assert np.all(np.abs(found - tensor.values) <= 2.0**-11 * 1.001 * parts + 1e-7)


@pytest.mark.parametrize("layout", Layout)
def test_a_matrix_packed_in_slices_is_the_same(
    context: Context, layout: Layout, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of the data that `packed` hears of are all of it, in order."""
    tensor = random_tensor(rng, GGUFType.Q4_1, (64 * 5 + 7, 96))
    order = rng.permutation(64 * 5 + 7).astype(np.int32)
    whole = tensor.pack(context, layout, order).unpack()
    monkeypatch.setattr(library, "SLICE_BYTES", 2 * 64 * 60)  # rows are of 60 bytes
    parts: list[npt.NDArray[np.uint8]] = []
    shape = (64 * 5 + 7, 96)
    sliced = PackedWeight(context, layout, tensor.encoding, shape, tensor.data, order, parts.append)
    np.testing.assert_array_equal(sliced.unpack(), whole)
    assert [part.nbytes // 60 for part in parts] == [128, 128, 71]
    np.testing.assert_array_equal(np.concatenate(parts), tensor.data.reshape(-1))


@pytest.mark.parametrize("encoding", PLAIN, ids=by_name)
def test_plain_weights_become_codes_of_8_bits(context: Context, encoding: GGUFType, rng: np.random.Generator) -> None:
    """No value moves by more than half a step of its group of 32 columns; zeros stay zero."""
    for num_columns in columns_of(encoding):
        tensor = random_tensor(rng, encoding, (37, num_columns))
        found = tensor.pack(context, Layout.GROUPED).unpack()
        padded = np.pad(tensor.values, ((0, 0), (0, -num_columns % 32))).reshape(37, -1, 32)
        steps = np.abs(padded).max(-1, keepdims=True) / 127
        rounding = np.maximum(steps * 2.0**-11, 2.0**-25)  # of the fp16 scale, which may be subnormal
        allowed = np.broadcast_to(steps * 0.5 + 127 * rounding, padded.shape).reshape(37, -1)[:, :num_columns]
        assert np.all(np.abs(found - tensor.values) <= allowed * 1.001)
    nothing = PackedWeight(context, Layout.GROUPED, GGUFType.F32, (3, 40), np.zeros(480, np.uint8))
    np.testing.assert_array_equal(nothing.unpack(), 0)


def test_weights_with_a_scale_for_each_row_unpack_to_within_half_a_step(
    context: Context, rng: np.random.Generator
) -> None:
    for encoding in (GGUFType.F16, GGUFType.Q4_1):
        for num_columns in (64, 320, 1056):
            tensor = random_tensor(rng, encoding, (75, num_columns))
            found = tensor.pack(context, Layout.INT8_CHANNEL).unpack()
            steps = np.abs(tensor.values).max(-1, keepdims=True) / 127
            assert np.all(np.abs(found - tensor.values) <= steps * 0.5001)


def minimums_of(tensor: RandomTensor) -> FloatArray:
    """The minimum of each value of a type of 256 columns, 0 for those without."""
    if tensor.encoding in WITHOUT_MINIMUM:
        return np.zeros_like(tensor.values)
    blocks = tensor.data.reshape(-1, tensor.encoding.block_bytes)
    _, codes = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])
    minimums = blocks[:, 2:4].copy().view(np.float16).astype(np.float32) * codes.reshape(-1, 8)
    return np.repeat(minimums, 32, axis=-1).reshape(tensor.values.shape).astype(np.float32)


def test_rows_are_packed_in_the_order_asked_for(context: Context, rng: np.random.Generator) -> None:
    for encoding, layout in [
        (GGUFType.Q4_1, Layout.GROUPED),
        (GGUFType.Q8_0, Layout.GROUPED),
        (GGUFType.F16, Layout.BF16),
    ]:
        tensor = random_tensor(rng, encoding, (77, 64))
        order = rng.permutation(77).astype(np.int32)
        found = tensor.pack(context, layout, order).unpack()
        np.testing.assert_array_equal(found, tensor.pack(context, layout).unpack()[order])


def test_packed_weights_are_not_much_larger_than_the_file(context: Context, rng: np.random.Generator) -> None:
    """Reading weights bounds the speed of a single request: a fatter layout is a slower one."""
    bits = {
        GGUFType.Q4_0: 4.5,
        GGUFType.IQ4_NL: 4.5,
        GGUFType.Q4_1: 5,
        GGUFType.Q4_K: 5,
        GGUFType.Q5_0: 8.5,
        GGUFType.Q8_0: 8.5,
        GGUFType.Q6_K: 9,
    }
    for encoding, limit in bits.items():
        weight = random_tensor(rng, encoding, (256, 512)).pack(context, layout_of(encoding, "int8"))
        assert weight.bytes * 8 / (256 * 512) <= limit
