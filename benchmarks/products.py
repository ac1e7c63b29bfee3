"""Products of the native library over weights that no cache holds, one step of a program at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from benchmarks.machine import settle
from octavo.backends.native import abi
from octavo.backends.native.assemble import assemble
from octavo.backends.native.instructions import (
    Buffer,
    BufferKind,
    GatedLinear,
    Instruction,
    Linear,
    Operation,
    ProgramText,
)
from octavo.backends.native.library import Context, PackedWeight
from octavo.backends.native.lower import operand_kind
from octavo.quant.gguf import Layout, layout_of
from octavo.weights.gguf import GGUFType

# Where the fp16 scales of a block lie; everything else may hold any bits.
_SCALES = {
    GGUFType.Q4_0: slice(0, 2),
    GGUFType.Q4_1: slice(0, 4),
    GGUFType.Q5_0: slice(0, 2),
    GGUFType.Q5_1: slice(0, 4),
    GGUFType.Q8_0: slice(0, 2),
    GGUFType.Q4_K: slice(0, 4),
    GGUFType.Q5_K: slice(0, 4),
    GGUFType.Q6_K: slice(208, 210),
    GGUFType.IQ4_NL: slice(0, 2),
}


@dataclass(frozen=True, slots=True)
class WeightKind:
    """What weights are in a file, and the layout they are packed into."""

    name: str
    encoding: GGUFType
    layout: Layout

    @classmethod
    def of(cls, encoding: GGUFType) -> Self:
        """As a model of such weights is packed."""
        return cls(encoding.name, encoding, layout_of(encoding, "int8"))


CHANNEL = WeightKind("INT8_CHANNEL", GGUFType.BF16, Layout.INT8_CHANNEL)
"""8 bits with a scale for each row, times activations with one for each row."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A matrix [num_rows, num_columns] of a model, as it is multiplied; `gated`: two of them and an activation."""

    name: str
    num_columns: int  # K
    num_rows: int  # N
    gated: bool = False

    @property
    def num_weights(self) -> int:
        return self.num_columns * self.num_rows * (2 if self.gated else 1)


def random_blocks(rng: np.random.Generator, encoding: GGUFType, shape: Shape) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor with small random values."""
    count = shape.num_rows * shape.num_columns
    if encoding is GGUFType.BF16:
        return (rng.normal(0, 0.05, count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (count // encoding.block_size, encoding.block_bytes), dtype=np.uint8)
    scales = _SCALES[encoding]
    blocks[:, scales] = np.full((scales.stop - scales.start) // 2, 0.001, np.float16).view(np.uint8)
    return blocks.reshape(-1)


class ColdProducts:
    """One product over and over, each time with other weights: `cold_bytes` of them, more than a cache holds.

    Activations are zero, which takes as long as any others without outliers. A barrier follows each product,
    as in a model.
    """

    def __init__(
        self,
        context: Context,
        rng: np.random.Generator,
        kind: WeightKind,
        shape: Shape,
        max_rows: int,
        cold_bytes: int,
    ) -> None:
        self._context = context
        blocks = random_blocks(rng, kind.encoding, shape)
        sides = 2 if shape.gated else 1

        def pack() -> PackedWeight:
            return PackedWeight(context, kind.layout, kind.encoding, (shape.num_rows, shape.num_columns), blocks)

        first = pack()
        self.bytes = first.bytes * sides  # of the weights of one product
        self.count = max(2, cold_bytes // self.bytes)
        weights = [first, *(pack() for _ in range(self.count * sides - 1))]
        operand = operand_kind(kind.layout, outliers=False)
        buffers = (
            Buffer(operand, shape.num_columns),
            Buffer(operand if shape.gated else BufferKind.F32, shape.num_rows),
        )
        products = (Instruction(_product(shape, index)) for index in range(self.count))
        self._program = assemble(
            ProgramText(buffers, tuple(products)),
            context,
            None,
            weights={str(index): weight for index, weight in enumerate(weights)},
            vectors={},
            max_tokens=max_rows,
            max_logit_rows=1,
        )
        self._token_ids = np.zeros(max_rows, np.int32)
        self._positions = np.arange(max_rows, dtype=np.int32)

    def seconds(self, rows: int) -> float:
        """How long one product of `rows` rows takes."""
        query_starts = np.array([0, rows], np.int32)
        step = abi.Step(
            num_tokens=rows,
            num_requests=1,
            token_ids=self._token_ids.ctypes.data,
            positions=self._positions.ctypes.data,
            query_starts=query_starts.ctypes.data,
        )
        settle(self._context)
        began = time.perf_counter()
        self._program.run(step)
        return (time.perf_counter() - began) / self.count

    def close(self) -> None:
        self._program.close()


def _product(shape: Shape, index: int) -> Operation:
    if shape.gated:
        return GatedLinear(0, 1, str(2 * index), str(2 * index + 1), "silu")
    return Linear(0, 1, str(index), shape.num_rows)
