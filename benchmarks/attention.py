"""Attention over a KV cache that no processor cache holds, against its floors.

    python -m benchmarks.attention [--isa ISA] [--case NAME ...] [--repeats N] [--json OUT]

Decoding reads every page of every request once: its floor is bytes over the bandwidth measured beside it. Prefilling
multiplies: its floor is the useful operations (causal: half a square) over the bf16 peak. Every
figure is the median of the repetitions, for all layers of the model together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.machine import State, measure_state, settle
from octavo.backends.native.assemble import assemble
from octavo.backends.native.instructions import Attention, Buffer, BufferKind, Instruction, ProgramText
from octavo.backends.native.kv_layout import KvLayout
from octavo.backends.native.library import Context, Peak
from octavo.backends.native.step_arrays import StepArrays
from octavo.config import BLOCK_TOKENS
from octavo.engine.machine import read_machine
from octavo.graph.ops import KvLayer
from octavo.step import BlockCopy

RUNS_OF_A_TURN = 3


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention of a model."""

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    window: int | None = None

    @property
    def layers(self) -> list[KvLayer]:
        return [KvLayer(i, self.num_kv_heads, self.head_size, self.window) for i in range(self.num_layers)]


SMOLLM2 = Heads("SmolLM2", 30, 9, 3, 64)
QWEN = Heads("Qwen-0.5B", 24, 14, 2, 64)
GEMMA = Heads("Gemma-270M", 15, 4, 1, 256, window=512)


@dataclass(frozen=True, slots=True)
class Case:
    """`num_requests` requests that each compute `num_tokens` tokens after `context` others.

    Their pages lie in order, as after long prompts, or shuffled, which no cache in use gets worse than.
    """

    heads: Heads
    num_requests: int
    num_tokens: int
    context: int
    shuffled: bool = False
    dtype: Literal["bf16", "int8"] = "bf16"

    @property
    def name(self) -> str:
        shuffled = " shuffled" if self.shuffled else ""
        dtype = f" {self.dtype}" if self.dtype != "bf16" else ""
        return f"{self.heads.name} {self.num_requests}x{self.num_tokens}@{self.context}{shuffled}{dtype}"

    @property
    def seen(self) -> int:
        """Pairs of a query and a key it sees, in one layer and head."""
        positions = range(self.context, self.context + self.num_tokens)
        window = self.heads.window or 1 << 62
        return self.num_requests * sum(min(position + 1, window) for position in positions)

    def floor_s(self, kv_bytes: int, state: State, bf16_gflops: float) -> float:
        operations = self.seen * self.heads.num_heads * self.heads.head_size * 4 * self.heads.num_layers
        return max(kv_bytes / state.read_gb_per_s, operations / bf16_gflops) * 1e-9


CASES = (
    Case(SMOLLM2, 64, 1, 165, shuffled=True),
    Case(SMOLLM2, 64, 1, 165, shuffled=True, dtype="int8"),
    Case(SMOLLM2, 64, 1, 500),
    Case(SMOLLM2, 64, 1, 500, shuffled=True),
    Case(SMOLLM2, 64, 1, 500, dtype="int8"),
    Case(SMOLLM2, 64, 1, 500, shuffled=True, dtype="int8"),
    Case(SMOLLM2, 16, 1, 300, shuffled=True),
    Case(SMOLLM2, 16, 1, 300, shuffled=True, dtype="int8"),
    Case(SMOLLM2, 16, 1, 500),
    Case(SMOLLM2, 1, 1, 500),
    Case(SMOLLM2, 1, 1, 4000),
    Case(SMOLLM2, 1, 128, 0),
    Case(SMOLLM2, 1, 512, 0),
    Case(SMOLLM2, 1, 512, 0, dtype="int8"),
    Case(SMOLLM2, 1, 512, 1536),
    Case(SMOLLM2, 1, 512, 1536, dtype="int8"),
    Case(QWEN, 16, 1, 500),
    Case(QWEN, 1, 512, 0),
    Case(GEMMA, 16, 1, 900),
    Case(GEMMA, 1, 512, 512),
)


@dataclass(frozen=True, slots=True)
class Figure:
    case: str
    ms: float
    of_floor: float
    kv_gb_per_s: float
    barrier_ns: float
    read_gb_per_s: float


class Batch:
    """The attention of all layers in one program."""

    def __init__(self, context: Context, case: Case) -> None:
        heads = case.heads
        length = case.context + case.num_tokens
        blocks = -(-length // BLOCK_TOKENS)
        layout = KvLayout(heads.layers, case.dtype)
        num_blocks = blocks * case.num_requests
        self._kv = layout.cache([num_blocks + 1])
        block_bytes = layout.groups[0].block_bytes
        seen_blocks = blocks if heads.window is None else min(blocks, -(-heads.window // BLOCK_TOKENS) + 1)
        self.kv_bytes = block_bytes * seen_blocks * case.num_requests
        columns = heads.num_heads * heads.head_size
        buffers = (
            Buffer(BufferKind.F32, columns + 2 * heads.num_kv_heads * heads.head_size),
            Buffer(BufferKind.F32, columns),
        )
        scale = heads.head_size**-0.5
        attentions = (Instruction(Attention(0, 1, heads.num_heads, layer, scale)) for layer in heads.layers)
        num_tokens = case.num_requests * case.num_tokens
        self._program = assemble(
            ProgramText(buffers, tuple(attentions)),
            context,
            self._kv,
            weights={},
            vectors={},
            max_tokens=num_tokens,
            max_logit_rows=1,
            max_blocks=blocks,
        )
        tables = np.arange(num_blocks, dtype=np.int32)
        if case.shuffled:
            np.random.default_rng(0).shuffle(tables)
        self._arrays = StepArrays(
            max_tokens=num_tokens,
            max_requests=case.num_requests,
            block_tables=tables.reshape(1, case.num_requests, blocks),
            max_logit_rows=1,
        )
        self._arrays.positions[:] = np.tile(np.arange(case.context, length), case.num_requests)
        self._arrays.query_starts[:] = np.arange(case.num_requests + 1) * case.num_tokens
        self._arrays.table_rows[:] = np.arange(case.num_requests)
        self._arrays.set_counts(num_tokens=num_tokens, num_requests=case.num_requests, num_logit_rows=0)
        queries = self._program.buffer(0)
        queries[:] = np.random.default_rng(0).standard_normal(queries.shape, np.float32)
        self._context = context
        self._touch_pages(num_blocks)

    def _touch_pages(self, num_blocks: int) -> None:
        """Pages that were never written would all be the same memory. One more block is copied to every other."""
        self._arrays.set_copies([BlockCopy(num_blocks, block) for block in range(num_blocks)])
        self._program.run(self._arrays.struct)
        self._arrays.set_copies([])

    def seconds(self) -> float:
        settle(self._context)
        began = time.perf_counter()
        self._program.run(self._arrays.struct)
        return time.perf_counter() - began

    def close(self) -> None:
        self._program.close()
        self._kv.close()


@dataclass(frozen=True, slots=True)
class Turn:
    """A few runs of one case, and the machine right before them."""

    seconds: float
    state: State


def measure(context: Context, cases: Sequence[Case], repeats: int) -> list[Figure]:
    """The cases take turns, so all of their pages are held at once."""
    bf16_gflops = context.peak_gops(Peak.BF16)
    batches = [Batch(context, case) for case in cases]
    for batch in batches:
        batch.seconds()
    rounds = [[_turn(context, batch) for batch in batches] for _ in range(repeats)]
    figures = [
        _figure(case, batch.kv_bytes, bf16_gflops, turns)
        for case, batch, turns in zip(cases, batches, zip(*rounds, strict=True), strict=True)
    ]
    for batch in batches:
        batch.close()
    return figures


def _turn(context: Context, batch: Batch) -> Turn:
    state = measure_state(context)
    return Turn(statistics.median(batch.seconds() for _ in range(RUNS_OF_A_TURN)), state)


def _figure(case: Case, kv_bytes: int, bf16_gflops: float, turns: Sequence[Turn]) -> Figure:
    """Medians over the turns, each held against the bandwidth of its own moment."""
    seconds = statistics.median(turn.seconds for turn in turns)
    floors = [case.floor_s(kv_bytes, turn.state, bf16_gflops) / turn.seconds for turn in turns]
    return Figure(
        case=case.name,
        ms=seconds * 1e3,
        of_floor=statistics.median(floors),
        kv_gb_per_s=kv_bytes / seconds * 1e-9,
        barrier_ns=statistics.median(turn.state.barrier_ns for turn in turns),
        read_gb_per_s=statistics.median(turn.state.read_gb_per_s for turn in turns),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="an instruction set below the best")
    parser.add_argument("--case", nargs="+", choices=[case.name for case in CASES], help="only these")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    cases = [case for case in CASES if args.case is None or case.name in args.case]
    context = Context(args.isa, read_machine().num_cores)
    figures = [measure(context, [case], args.repeats)[0] for case in cases]
    print_figures(figures)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")


def print_figures(figures: Sequence[Figure]) -> None:
    print("\n| attention | ms | of floor | KV GB/s | barrier ns | read GB/s |")
    print("|---|---|---|---|---|---|")
    for figure in figures:
        print(
            f"| {figure.case} | {figure.ms:.2f} | {figure.of_floor:.0%} | {figure.kv_gb_per_s:.1f} "
            f"| {figure.barrier_ns:.0f} | {figure.read_gb_per_s:.1f} |"
        )


if __name__ == "__main__":
    main()
