"""Every kernel against its floor, and products of the real models' shapes against oneDNN.

    python -m benchmarks.kernels [--quick] [--only products|attention|others ...] [--json OUT]
        [--shape NAME ...] [--type TYPE ...] [--rows M ...] [--no-peer]

A product cannot take less than its bytes (weights, activations, results) over the bandwidth or its operations over the
peak, both measured beside it; the larger is its floor. Weights come from memory: each repetition goes through as many
matrices as no cache holds. Formats and peer take turns; every figure is the median of their turns. `attention.py` and
`other_kernels.py` have what else there is; the second line of arguments is about products.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import attention, other_kernels
from benchmarks.machine import measure_state
from benchmarks.products import CHANNEL, ColdProducts, Shape, WeightKind
from octavo.backends.native.library import Context, Peak
from octavo.engine.machine import read_machine
from octavo.quant.gguf import Layout
from octavo.weights.gguf import GGUFType

SHAPES = (
    Shape("SmolLM2 q k v", 576, 960),
    Shape("SmolLM2 output", 576, 576),
    Shape("SmolLM2 gate", 576, 1536),
    Shape("SmolLM2 gate+up", 576, 1536, gated=True),
    Shape("SmolLM2 down", 1536, 576),
    Shape("SmolLM2 head", 576, 49152),
    Shape("Qwen-0.5B q k v", 896, 1152),
    Shape("Qwen-0.5B output", 896, 896),
    Shape("Qwen-0.5B gate", 896, 4864),
    Shape("Qwen-0.5B gate+up", 896, 4864, gated=True),
    Shape("Qwen-0.5B down", 4864, 896),
    Shape("Qwen-1.5B q k v", 1536, 2048),
    Shape("Qwen-1.5B output", 1536, 1536),
    Shape("Qwen-1.5B gate", 1536, 8960),
    Shape("Qwen-1.5B gate+up", 1536, 8960, gated=True),
    Shape("Qwen-1.5B down", 8960, 1536),
    Shape("Gemma-270M q k v", 640, 1536),
    Shape("Gemma-270M output", 1024, 640),
    Shape("Gemma-270M gate", 640, 2048),
    Shape("Gemma-270M gate+up", 640, 2048, gated=True),
    Shape("Gemma-270M down", 2048, 640),
)
ALL_SHAPES = tuple(shape.name for shape in SHAPES)
QUICK_SHAPES = ("SmolLM2 q k v", "SmolLM2 gate", "SmolLM2 down", "Qwen-0.5B gate")
# One for each way products are computed.
KINDS = (
    WeightKind.of(GGUFType.BF16),
    CHANNEL,
    WeightKind.of(GGUFType.Q8_0),
    WeightKind.of(GGUFType.Q6_K),
    WeightKind.of(GGUFType.Q5_1),
    WeightKind.of(GGUFType.Q5_0),
    WeightKind.of(GGUFType.Q4_1),
    WeightKind.of(GGUFType.Q4_0),
    WeightKind.of(GGUFType.IQ4_NL),
)
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 512)
QUICK_ROWS = (1, 4, 16, 128, 512)
QUICK_CONTEXTS = (0, 500)
COLD_BYTES = 96 * 2**20
COLD_BYTES_OF_MANY_ROWS = 24 * 2**20
FEW_ROWS = 32
PAUSE_S = 0.02
RUNS_OF_A_TURN = 4


Seconds = Callable[[int], float]  # of one product of so many rows


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine allowed beside a block of results."""

    barrier_ns: float
    read_gb_per_s: float
    bf16_gflops: float
    int8_gops: float

    def peak_gops(self, kind: WeightKind) -> float:
        return self.bf16_gflops if kind.layout is Layout.BF16 else self.int8_gops

    def floor_s(self, shape: Shape, kind: WeightKind, weight_bytes: int, rows: int) -> float:
        activations = rows * (shape.num_columns + 4 * shape.num_rows)  # a byte at least in, fp32 out
        operations = 2 * rows * shape.num_weights
        return max((weight_bytes + activations) / self.read_gb_per_s, operations / self.peak_gops(kind)) * 1e-9


@dataclass(frozen=True, slots=True)
class Figure:
    """One product of our own, and oneDNN's time for it where it has one."""

    shape: str
    type: str
    rows: int
    us: float
    of_floor: float
    gops: float
    weight_gb_per_s: float
    peer_us: float | None


def measure_shape(
    context: Context, shape: Shape, kinds: Sequence[WeightKind], rows: Sequence[int], repeats: int, peers: bool
) -> tuple[Limits, list[Figure]]:
    """Products of all kinds and row counts with matrices of one shape, and what the machine allowed meanwhile."""
    state = measure_state(context)
    few = [count for count in rows if count <= FEW_ROWS]
    many = [count for count in rows if count > FEW_ROWS]
    limits = Limits(state.barrier_ns, state.read_gb_per_s, context.peak_gops(Peak.BF16), context.peak_gops(Peak.INT8))
    figures = []
    for counts, cold_bytes in ((few, COLD_BYTES), (many, COLD_BYTES_OF_MANY_ROWS)):
        if counts:
            figures += _measure_rows(context, shape, kinds, counts, cold_bytes, repeats, peers, limits)
    return limits, figures


def _measure_rows(
    context: Context,
    shape: Shape,
    kinds: Sequence[WeightKind],
    rows: Sequence[int],
    cold_bytes: int,
    repeats: int,
    peers: bool,
    limits: Limits,
) -> list[Figure]:
    rng = np.random.default_rng(0)
    products = {kind: ColdProducts(context, rng, kind, shape, max(rows), cold_bytes) for kind in kinds}
    contenders: dict[str, Seconds] = {kind.name: product.seconds for kind, product in products.items()}
    if peers and not shape.gated:
        contenders |= _peers(shape, kinds, max(rows), cold_bytes)
    figures = []
    for count in rows:
        seconds = _medians(contenders, count, repeats)
        for kind, product in products.items():
            own = seconds[kind.name]
            peer = seconds.get("oneDNN bf16" if kind.layout is Layout.BF16 else "oneDNN int8")
            figures.append(
                Figure(
                    shape.name,
                    kind.name,
                    count,
                    us=own * 1e6,
                    of_floor=limits.floor_s(shape, kind, product.bytes, count) / own,
                    gops=2 * count * shape.num_weights / own * 1e-9,
                    weight_gb_per_s=product.bytes / own * 1e-9,
                    peer_us=None if peer is None else peer * 1e6,
                )
            )
    for product in products.values():
        product.close()
    return figures


def _peers(shape: Shape, kinds: Sequence[WeightKind], max_rows: int, cold_bytes: int) -> dict[str, Seconds]:
    from benchmarks import peer_onednn

    peers: dict[str, Seconds] = {}
    layouts = {kind.layout for kind in kinds}
    if Layout.BF16 in layouts:
        peers["oneDNN bf16"] = peer_onednn.bf16_products(shape, max(2, cold_bytes // shape.num_weights // 2), max_rows)
    if layouts - {Layout.BF16}:
        peers["oneDNN int8"] = peer_onednn.int8_products(shape, max(2, cold_bytes // shape.num_weights), max_rows)
    return peers


def _medians(contenders: Mapping[str, Seconds], rows: int, repeats: int) -> dict[str, float]:
    """Of each contender's turns; they alternate."""
    turns = [{name: _turn(seconds, rows) for name, seconds in contenders.items()} for _ in range(repeats)]
    return {name: statistics.median(turn[name] for turn in turns) for name in contenders}


def _turn(seconds: Seconds, rows: int) -> float:
    """The best of a few runs, after a pause in which whoever ran before stops spinning.

    A run is a few milliseconds long; on a machine that is not ours alone some are cut in two by another process.
    """
    time.sleep(PAUSE_S)
    return min(seconds(rows) for _ in range(RUNS_OF_A_TURN))


def print_block(shape: Shape, limits: Limits, figures: Sequence[Figure]) -> None:
    print(
        f"\n{shape.name}: {shape.num_columns} x {shape.num_rows}{' x 2' if shape.gated else ''}; "
        f"barrier {limits.barrier_ns:.0f} ns, read {limits.read_gb_per_s:.1f} GB/s, "
        f"bf16 {limits.bf16_gflops:.0f} GFLOP/s, int8 {limits.int8_gops:.0f} GOP/s"
    )
    print("| type | rows | us | of floor | GOP/s | weights GB/s | oneDNN us |")
    print("|---|---|---|---|---|---|---|")
    for figure in sorted(figures, key=lambda figure: figure.type):
        peer = "" if figure.peer_us is None else f"{figure.peer_us:.0f}"
        print(
            f"| {figure.type} | {figure.rows} | {figure.us:.1f} | {figure.of_floor:.0%} | {figure.gops:.0f} "
            f"| {figure.weight_gb_per_s:.1f} | {peer} |"
        )


def main() -> None:
    args = _arguments()
    context = Context(args.isa, args.threads)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in args.only or PARTS}
    for name, entries in found.items():
        entries += PARTS[name](context, args)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


def _products(context: Context, args: argparse.Namespace) -> list[dict[str, Any]]:
    shapes = [shape for shape in SHAPES if shape.name in (args.shape or (QUICK_SHAPES if args.quick else ALL_SHAPES))]
    kinds = [kind for kind in KINDS if args.type is None or kind.name in args.type]
    rows = args.rows or (QUICK_ROWS if args.quick else ROWS)
    blocks = []
    for shape in shapes:
        usable = [kind for kind in kinds if shape.num_columns % kind.encoding.block_size == 0]
        limits, figures = measure_shape(context, shape, usable, rows, args.repeats, not args.no_peer)
        print_block(shape, limits, figures)
        blocks.append({"shape": asdict(shape), "limits": asdict(limits), "figures": [asdict(f) for f in figures]})
    return blocks


def _attention(context: Context, args: argparse.Namespace) -> list[dict[str, Any]]:
    cases = [case for case in attention.CASES if not args.quick or case.context in QUICK_CONTEXTS]
    figures = [attention.measure(context, [case], args.repeats)[0] for case in cases]
    attention.print_figures(figures)
    return [asdict(figure) for figure in figures]


def _others(context: Context, args: argparse.Namespace) -> list[dict[str, Any]]:
    figures = other_kernels.measure(context, args.repeats, quick=args.quick)
    other_kernels.print_figures(figures)
    return [asdict(figure) for figure in figures]


PARTS: Mapping[str, Callable[[Context, argparse.Namespace], list[dict[str, Any]]]] = {
    "products": _products,
    "attention": _attention,
    "others": _others,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="some shapes, row counts and contexts")
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--shape", action="append", choices=ALL_SHAPES)
    parser.add_argument("--type", action="append", choices=[kind.name for kind in KINDS])
    parser.add_argument("--rows", type=int, nargs="+", metavar="M")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-peer", action="store_true", help="without oneDNN, which needs torch")
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser.parse_args()


if __name__ == "__main__":
    main()
