"""What a native program is made of: numbered buffers and instructions over them, as plain values.

The Python side of `oct_buffer` and `oct_instruction` in `csrc/include/octavo.h`, where every operation is defined.
Buffers are given by number, matrices and vectors by the name of their weight; `assemble.py` turns both into pointers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from octavo.graph.ops import GatedActivation, KvLayer, Rotary


class BufferKind(IntEnum):
    F32 = 0
    OPERAND_INT8 = 1
    OPERAND_BF16 = 2


class RowSpace(IntEnum):
    """One row a token of the step, or one a row that needs logits."""

    TOKENS = 0
    LOGITS = 1


@dataclass(frozen=True, slots=True)
class Buffer:
    kind: BufferKind
    columns: int
    row_space: RowSpace = RowSpace.TOKENS


@dataclass(frozen=True, slots=True)
class Embed:
    dst: int
    weight: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RotaryTable:
    dst: int
    rotary: Rotary


@dataclass(frozen=True, slots=True)
class RmsNorm:
    src: int
    dst: int
    weight: str
    epsilon: float
    dst2: int | None = None
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class Quantize:
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class Linear:
    """Writes columns dst_column .. dst_column + num_columns of dst."""

    src: int
    dst: int
    weight: str
    num_columns: int
    bias: str | None = None
    dst_column: int = 0
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class GatedLinear:
    src: int
    dst: int
    gate: str
    up: str
    activation: GatedActivation
    src_up: int | None = None


@dataclass(frozen=True, slots=True)
class RopeKv:
    qkv: int
    rotary: int | None
    num_heads: int
    kv: KvLayer
    epsilon: float = 0.0
    q_norm: str | None = None
    k_norm: str | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    qkv: int
    dst: int
    num_heads: int
    kv: KvLayer
    scale: float
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class SelectRows:
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class Sample:
    src: int
    weight: str
    softcap: float | None = None


Operation = Embed | RotaryTable | RmsNorm | Quantize | Linear | GatedLinear | RopeKv | Attention | SelectRows | Sample


@dataclass(frozen=True, slots=True)
class Instruction:
    """An operation; with `barrier` all threads wait for each other after it."""

    operation: Operation
    barrier: bool = True


@dataclass(frozen=True, slots=True)
class ProgramText:
    """A whole program: what `lower.py` makes of a model, ready to be assembled."""

    buffers: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
