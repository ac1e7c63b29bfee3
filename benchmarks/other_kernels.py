"""The kernels of a step beside products and attention, against their floors: embedding, norms, rope, experts, head.

A floor is what a kernel must read and write over the bandwidth measured beside it, or its operations over the peak,
whichever takes longer. Buffers, pages and weights are more than the caches hold. In a step rows come from the
second-level cache for the most part, so that norms, quantising and rope take less there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.machine import measure_state, settle
from benchmarks.products import Shape, WeightKind, random_blocks
from octavo.backends.native.assemble import assemble
from octavo.backends.native.instructions import (
    Buffer,
    BufferKind,
    Embed,
    Instruction,
    Moe,
    Operation,
    ProgramText,
    Quantize,
    RmsNorm,
    RopeKv,
    RotaryTable,
    RowSpace,
    Sample,
    expert_weight,
)
from octavo.backends.native.kv_layout import KvLayout
from octavo.backends.native.library import Context, FloatArray, KvCache, PackedWeight, Peak
from octavo.backends.native.step_arrays import StepArrays
from octavo.config import BLOCK_TOKENS
from octavo.graph.ops import KvLayer, Rotary
from octavo.weights.gguf import GGUFType

COLD_BYTES = 96 * 2**20
RUNS_OF_A_TURN = 4

# SmolLM2's.
WIDTH, VOCABULARY = 576, 49152
HEADS, KV_HEADS, HEAD_SIZE = 9, 3, 64
QKV_COLUMNS = (HEADS + 2 * KV_HEADS) * HEAD_SIZE
HEAD = Shape("Qwen-0.5B head", 896, 151936)
# Of a mixture.
EXPERTS, ACTIVE, EXPERT_WIDTH = 64, 4, 768

_BYTES_A_VALUE = {
    BufferKind.F32: 4.0,
    BufferKind.OPERAND_BF16: 2.0,
    BufferKind.OPERAND_INT8: 1.125,
    BufferKind.OPERAND_INT8_OUTLIERS: 1.125,
}
_KIND = WeightKind.of(GGUFType.Q4_1)


@dataclass(frozen=True, slots=True)
class Work:
    """Operations that all do the same, each on memory of its own; `first` come before them and are not counted.

    `num_bytes` and `num_operations` are those of one of them.
    """

    buffers: Sequence[Buffer]
    operations: Sequence[Operation]
    num_bytes: float
    num_operations: float = 0
    first: Sequence[Operation] = ()
    weights: Mapping[str, PackedWeight] = field(default_factory=dict)
    vectors: Mapping[str, FloatArray] = field(default_factory=dict)
    kv: KvCache | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    kernel: str
    rows: int
    us: float
    of_floor: float
    barrier_ns: float
    read_gb_per_s: float


def norm(kind: BufferKind) -> Callable[[Context, int], Work]:
    def work(_: Context, rows: int) -> Work:
        return _row_by_row(rows, kind, lambda src, dst: RmsNorm(src, dst, "norm", 1e-5))

    return work


def quantize(_: Context, rows: int) -> Work:
    return _row_by_row(rows, BufferKind.OPERAND_INT8, Quantize)


def _row_by_row(rows: int, kind: BufferKind, operation: Callable[[int, int], Operation]) -> Work:
    """From a buffer of fp32 to one of another kind."""
    num_bytes = rows * WIDTH * (4 + _BYTES_A_VALUE[kind])
    copies = range(_copies(num_bytes))
    buffers = [buffer for _ in copies for buffer in (Buffer(BufferKind.F32, WIDTH), Buffer(kind, WIDTH))]
    operations = [operation(2 * copy, 2 * copy + 1) for copy in copies]
    return Work(buffers, operations, num_bytes, vectors={"norm": np.ones(WIDTH, np.float32)})


def embed(context: Context, rows: int) -> Work:
    table = _weight(context, Shape("", WIDTH, VOCABULARY))
    num_bytes = rows * (table.bytes / VOCABULARY + 4 * WIDTH)
    copies = range(_copies(num_bytes))
    buffers = [Buffer(BufferKind.F32, WIDTH) for _ in copies]
    return Work(buffers, [Embed(copy, "table") for copy in copies], num_bytes, weights={"table": table})


def rope_kv(dtype: str) -> Callable[[Context, int], Work]:
    """Rotation of queries and keys, and keys and values to their pages."""

    def work(_: Context, rows: int) -> Work:
        stored = 2 * KV_HEADS * (HEAD_SIZE * 2 if dtype == "bf16" else HEAD_SIZE + 4)
        num_bytes = rows * (4 * (QKV_COLUMNS + HEADS * HEAD_SIZE) + stored)
        copies = range(_copies(num_bytes))
        layers = [KvLayer(copy, KV_HEADS, HEAD_SIZE) for copy in copies]
        rotary = Rotary(tuple(10_000 ** (-2 * i / HEAD_SIZE) for i in range(HEAD_SIZE // 2)))
        buffers = [Buffer(BufferKind.F32, HEAD_SIZE), *(Buffer(BufferKind.F32, QKV_COLUMNS) for _ in copies)]
        return Work(
            buffers,
            [RopeKv(copy + 1, 0, HEADS, layers[copy]) for copy in copies],
            num_bytes,
            first=[RotaryTable(0, rotary)],
            kv=KvLayout(layers, "bf16" if dtype == "bf16" else "int8").cache([_blocks(rows)]),
        )

    return work


def experts(context: Context, rows: int) -> Work:
    """A mixture whose rows choose evenly, as random ones do. Other routers choose others of the same experts."""
    shapes = {
        "gate": Shape("", WIDTH, EXPERT_WIDTH),
        "up": Shape("", WIDTH, EXPERT_WIDTH),
        "down": Shape("", EXPERT_WIDTH, WIDTH),
    }
    weights = {
        expert_weight(name, expert): _weight(context, shape)
        for name, shape in shapes.items()
        for expert in range(EXPERTS)
    }
    num_used = EXPERTS * (1 - (1 - ACTIVE / EXPERTS) ** rows)
    num_bytes = num_used / EXPERTS * sum(weight.bytes for weight in weights.values()) + 8 * rows * WIDTH
    rng = np.random.default_rng(0)
    routers = {str(copy): rng.normal(0, 0.05, EXPERTS * WIDTH).astype(np.float32) for copy in range(_copies(num_bytes))}
    return Work(
        [Buffer(BufferKind.F32, WIDTH), Buffer(BufferKind.F32, WIDTH)],
        [_moe(router) for router in routers],
        num_bytes,
        2 * rows * ACTIVE * sum(shape.num_weights for shape in shapes.values()),
        weights=weights,
        vectors=routers,
    )


def _moe(router: str) -> Moe:
    return Moe(
        0,
        1,
        router,
        "gate",
        "up",
        "down",
        num_experts=EXPERTS,
        num_active=ACTIVE,
        renormalise=True,
        activation="silu",
    )


def head(context: Context, rows: int) -> Work:
    """The product with the head, and the largest logit of each row. A program has one."""
    weight = _weight(context, HEAD)
    return Work(
        [Buffer(BufferKind.OPERAND_INT8_OUTLIERS, HEAD.num_columns, RowSpace.LOGITS)],
        [Sample(0, "head")],
        weight.bytes + rows * HEAD.num_columns,
        2 * rows * HEAD.num_weights,
        weights={"head": weight},
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """`work` makes what is to be done with so many rows."""

    name: str
    work: Callable[[Context, int], Work]
    rows: tuple[int, ...] = (64, 512)  # a single one takes no more than the start of an instruction


KERNELS = (
    Kernel("embedding", embed),
    Kernel("norm to int8 with outliers", norm(BufferKind.OPERAND_INT8_OUTLIERS)),
    Kernel("norm to bf16", norm(BufferKind.OPERAND_BF16)),
    Kernel("norm to fp32", norm(BufferKind.F32)),
    Kernel("quantise to int8", quantize),
    Kernel("rope, keys and values to bf16 pages", rope_kv("bf16")),
    Kernel("rope, keys and values to int8 pages", rope_kv("int8")),
    Kernel(f"{EXPERTS} experts, {ACTIVE} a row", experts, (1, 64, 512)),
    Kernel(f"{HEAD.name} and largest logit", head, (1, 64, 512)),
)


class _Running:
    """A program of the work, and a step of one request that runs it."""

    def __init__(self, context: Context, work: Work, rows: int) -> None:
        self._context, self._work = context, work
        self._program = assemble(
            ProgramText(tuple(work.buffers), tuple(map(Instruction, (*work.first, *work.operations)))),
            context,
            work.kv,
            weights=work.weights,
            vectors=work.vectors,
            max_tokens=rows,
            max_logit_rows=rows,
            max_blocks=_blocks(rows),
        )
        rng = np.random.default_rng(0)
        for number, buffer in enumerate(work.buffers):
            if buffer.kind is BufferKind.F32:
                self._program.buffer(number)[:] = rng.standard_normal((rows, buffer.columns), np.float32)
        blocks = np.arange(_blocks(rows), dtype=np.int32).reshape(1, 1, -1)
        self._arrays = StepArrays(max_tokens=rows, max_requests=1, block_tables=blocks, max_logit_rows=rows)
        self._arrays.token_ids[:] = rng.integers(0, VOCABULARY, rows)
        self._arrays.positions[:] = np.arange(rows)
        self._arrays.query_starts[1] = rows
        self._arrays.logit_rows[:] = np.arange(rows)
        self._arrays.set_counts(num_tokens=rows, num_requests=1, num_logit_rows=rows)

    def seconds(self) -> float:
        """Of one of the operations."""
        settle(self._context)
        began = time.perf_counter()
        self._program.run(self._arrays.struct)
        return (time.perf_counter() - began) / len(self._work.operations)

    def close(self) -> None:
        self._program.close()
        if self._work.kv is not None:
            self._work.kv.close()


def measure(context: Context, repeats: int, *, quick: bool) -> list[Figure]:
    return [
        _measure(context, kernel, rows, repeats) for kernel in KERNELS for rows in ((64,) if quick else kernel.rows)
    ]


def _measure(context: Context, kernel: Kernel, rows: int, repeats: int) -> Figure:
    """The median turn, each turn the best of a few runs."""
    work = kernel.work(context, rows)
    running = _Running(context, work, rows)
    running.seconds()
    state, peak_gops = measure_state(context), context.peak_gops(Peak.INT8)
    seconds = statistics.median(min(running.seconds() for _ in range(RUNS_OF_A_TURN)) for _ in range(repeats))
    running.close()
    floor_s = max(work.num_bytes / state.read_gb_per_s, work.num_operations / peak_gops) * 1e-9
    return Figure(kernel.name, rows, seconds * 1e6, floor_s / seconds, state.barrier_ns, state.read_gb_per_s)


def print_figures(figures: Sequence[Figure]) -> None:
    print("\n| kernel | rows | us | of floor | barrier ns | read GB/s |")
    print("|---|---|---|---|---|---|")
    for figure in figures:
        print(
            f"| {figure.kernel} | {figure.rows} | {figure.us:.1f} | {figure.of_floor:.0%} "
            f"| {figure.barrier_ns:.0f} | {figure.read_gb_per_s:.1f} |"
        )


def _copies(num_bytes: float) -> int:
    return max(2, int(COLD_BYTES / num_bytes))


def _blocks(rows: int) -> int:
    return -(-rows // BLOCK_TOKENS)


def _weight(context: Context, shape: Shape) -> PackedWeight:
    blocks = random_blocks(np.random.default_rng(0), _KIND.encoding, shape)
    return PackedWeight(context, _KIND.layout, _KIND.encoding, (shape.num_rows, shape.num_columns), blocks)
