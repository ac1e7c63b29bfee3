"""What a native program is made of: numbered buffers and instructions over them, as plain values.

The Python side of `oct_buffer` and `oct_instruction` in `csrc/include/octavo.h`, where every operation is defined.
Buffers are given by number, matrices and vectors by the name of their weight; `assemble.py` turns both into pointers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import ClassVar, Self

from octavo.graph.ops import GatedActivation, KvLayer, Rotary


class BufferKind(IntEnum):
    F32 = 0
    OPERAND_INT8 = 1
    OPERAND_BF16 = 2
    OPERAND_INT8_OUTLIERS = 3
    OPERAND_INT8_ROW = 4


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
class Access:
    """A part of what operations share: columns first .. last of a buffer, or one layer of the KV cache."""

    resource: tuple[str, int]
    first: int
    last: int

    def overlaps(self, other: Access) -> bool:
        return self.resource == other.resource and self.first < other.last and other.first < self.last


ALL_COLUMNS = 1 << 31


class Operation:
    """What every operation can tell of itself: the fields that are buffers it reads and buffers it writes."""

    __slots__ = ()
    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()

    def buffers(self) -> set[int]:
        fields = {getattr(self, name) for name in (*self.READS, *self.WRITES)}
        return {buffer for buffer in fields if buffer is not None}

    def renumbered(self, numbers: Mapping[int, int]) -> Self:
        """The same operation on buffers `numbers[n]` instead of n."""
        fields = {name: getattr(self, name) for name in (*self.READS, *self.WRITES)}
        return replace(self, **{name: numbers[n] for name, n in fields.items() if n is not None})  # type: ignore[type-var]

    def reads(self) -> tuple[Access, ...]:
        return tuple(_whole(getattr(self, name)) for name in self.READS if getattr(self, name) is not None)

    def writes(self) -> tuple[Access, ...]:
        return tuple(_whole(getattr(self, name)) for name in self.WRITES if getattr(self, name) is not None)


def _whole(buffer: int) -> Access:
    return Access(("buffer", buffer), 0, ALL_COLUMNS)


def _kv_layer(kv: KvLayer) -> Access:
    return Access(("kv", kv.index), 0, ALL_COLUMNS)


@dataclass(frozen=True, slots=True)
class Embed(Operation):
    WRITES: ClassVar = ("dst",)
    dst: int
    weight: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RotaryTable(Operation):
    WRITES: ClassVar = ("dst",)
    dst: int
    rotary: Rotary


@dataclass(frozen=True, slots=True)
class RmsNorm(Operation):
    READS: ClassVar = ("src",)
    WRITES: ClassVar = ("dst", "dst2")
    src: int
    dst: int
    weight: str
    epsilon: float
    dst2: int | None = None
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class Quantize(Operation):
    READS: ClassVar = ("src",)
    WRITES: ClassVar = ("dst",)
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class Linear(Operation):
    """Writes columns dst_column .. dst_column + num_columns of dst."""

    READS: ClassVar = ("src",)
    WRITES: ClassVar = ("dst",)
    src: int
    dst: int
    weight: str
    num_columns: int
    bias: str | None = None
    dst_column: int = 0
    accumulate: bool = False

    def writes(self) -> tuple[Access, ...]:
        return (Access(("buffer", self.dst), self.dst_column, self.dst_column + self.num_columns),)


@dataclass(frozen=True, slots=True)
class GatedLinear(Operation):
    READS: ClassVar = ("src", "src_up")
    WRITES: ClassVar = ("dst",)
    src: int
    dst: int
    gate: str
    up: str
    activation: GatedActivation
    src_up: int | None = None


@dataclass(frozen=True, slots=True)
class Moe(Operation):
    """`gate`, `up` and `down` name the matrices of all experts: see `expert_weight`."""

    READS: ClassVar = ("src",)
    WRITES: ClassVar = ("dst",)
    src: int
    dst: int
    router: str
    gate: str
    up: str
    down: str
    num_experts: int
    num_active: int
    renormalise: bool
    activation: GatedActivation
    accumulate: bool = False


def expert_weight(name: str, expert: int) -> str:
    """What the matrix of one expert is called among the packed weights."""
    return f"{name}[{expert}]"


@dataclass(frozen=True, slots=True)
class RopeKv(Operation):
    READS: ClassVar = ("qkv", "rotary")
    WRITES: ClassVar = ("qkv",)
    qkv: int
    rotary: int | None
    num_heads: int
    kv: KvLayer
    epsilon: float = 0.0
    q_norm: str | None = None
    k_norm: str | None = None

    def writes(self) -> tuple[Access, ...]:
        return (_whole(self.qkv), _kv_layer(self.kv))


@dataclass(frozen=True, slots=True)
class Attention(Operation):
    READS: ClassVar = ("qkv",)
    WRITES: ClassVar = ("dst",)
    qkv: int
    dst: int
    num_heads: int
    kv: KvLayer
    scale: float
    softcap: float | None = None
    sinks: str | None = None

    def reads(self) -> tuple[Access, ...]:
        return (_whole(self.qkv), _kv_layer(self.kv))


@dataclass(frozen=True, slots=True)
class SelectRows(Operation):
    READS: ClassVar = ("src",)
    WRITES: ClassVar = ("dst",)
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class Sample(Operation):
    READS: ClassVar = ("src",)
    src: int
    weight: str
    softcap: float | None = None


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
