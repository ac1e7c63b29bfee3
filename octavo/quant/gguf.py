"""GGUF tensor types and the canonical layouts their tensors are packed into."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from octavo.config import Quantization
from octavo.errors import UnsupportedModelError
from octavo.weights.gguf import GGUFType


class Layout(IntEnum):
    """How a packed matrix keeps its values; numbers as in `csrc/include/octavo.h`.

    BF16 takes part in products with bf16 activations, GROUPED with activations of int8 codes, INT8_CHANNEL with those
    of one scale a row. No GGUF type comes with a scale for each row: INT8_CHANNEL is for checkpoints that do.
    """

    BF16 = 0
    GROUPED = 1  # codes of 4, 5, 6 or 8 bits, a scale for 16 or 32 columns, a minimum for 32 or none
    INT8_CHANNEL = 2  # codes of 8 bits, a scale for each row


_CANONICAL: dict[GGUFType, Layout] = {
    GGUFType.F32: Layout.BF16,
    GGUFType.F16: Layout.BF16,
    GGUFType.BF16: Layout.BF16,
    GGUFType.Q4_0: Layout.GROUPED,
    GGUFType.Q4_1: Layout.GROUPED,
    GGUFType.Q4_K: Layout.GROUPED,
    GGUFType.Q5_0: Layout.GROUPED,
    GGUFType.Q5_1: Layout.GROUPED,
    GGUFType.Q5_K: Layout.GROUPED,
    GGUFType.Q6_K: Layout.GROUPED,
    GGUFType.Q8_0: Layout.GROUPED,
    GGUFType.IQ4_NL: Layout.GROUPED,
    GGUFType.IQ4_XS: Layout.GROUPED,
    GGUFType.MXFP4: Layout.GROUPED,
}


def layout_of(encoding: int, activation: Literal["bf16", "int8"], quantization: Quantization | None = None) -> Layout:
    """The layout of a matrix of GGUF type `encoding`. With bf16 activations every matrix becomes bf16.

    `quantization` is what becomes of matrices of 16 or 32 bits: int8 gives them codes of 8 bits with a scale for 32
    columns. Raises `UnsupportedModelError` for a type Octavo cannot pack.
    """
    try:
        layout = _CANONICAL[GGUFType(encoding)]
    except ValueError:
        raise UnsupportedModelError(f"GGUF tensor type {encoding} is unknown") from None
    except KeyError:
        raise UnsupportedModelError(f"GGUF tensor type {GGUFType(encoding).name} is not supported") from None
    if activation == "bf16":
        return Layout.BF16
    return Layout.GROUPED if quantization == "int8" else layout
