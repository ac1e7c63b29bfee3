"""GGUF tensor types and the canonical layouts their tensors are packed into."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from octavo.errors import UnsupportedModelError
from octavo.weights.gguf import GGUFType


class Layout(IntEnum):
    """How a packed matrix keeps its values; numbers as in `csrc/include/octavo.h`.

    BF16 takes part in products with bf16 activations, the grouped layouts with activations of int8 codes, S8_GROUP of
    int16 ones.
    """

    BF16 = 0
    U8_GROUP = 1  # codes of 5 or 6 bits in a byte, one scale (and minimum) a group of 16 or 32 columns
    U4_GROUP = 2  # codes of 4 bits, one scale (and minimum) a group of 32 columns
    S8_GROUP = 3  # signed codes of 8 bits, one scale a group of 32 columns


_CANONICAL: dict[GGUFType, Layout] = {
    GGUFType.F32: Layout.BF16,
    GGUFType.F16: Layout.BF16,
    GGUFType.BF16: Layout.BF16,
    GGUFType.Q4_0: Layout.U4_GROUP,
    GGUFType.Q4_1: Layout.U4_GROUP,
    GGUFType.Q4_K: Layout.U4_GROUP,
    GGUFType.Q5_0: Layout.U8_GROUP,
    GGUFType.Q5_1: Layout.U8_GROUP,
    GGUFType.Q5_K: Layout.U8_GROUP,
    GGUFType.Q6_K: Layout.U8_GROUP,
    GGUFType.Q8_0: Layout.S8_GROUP,
}


def layout_of(encoding: int, activation: Literal["bf16", "int8"]) -> Layout:
    """The layout of a matrix of GGUF type `encoding`. With bf16 activations every matrix becomes bf16.

    Raises `UnsupportedModelError` for a type Octavo cannot pack.
    """
    try:
        layout = _CANONICAL[GGUFType(encoding)]
    except ValueError:
        raise UnsupportedModelError(f"GGUF tensor type {encoding} is unknown") from None
    except KeyError:
        raise UnsupportedModelError(f"GGUF tensor type {GGUFType(encoding).name} is not supported") from None
    return Layout.BF16 if activation == "bf16" else layout
