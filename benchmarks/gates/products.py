"""Products against the peak and against the bandwidth.

Of products in groups of 32 one kind exists, with an activation scale for each group; none has one scale a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.gates.gate import Gate
from benchmarks.kernels import SHAPES, Figure, Limits, measure_shape
from benchmarks.machine import State
from benchmarks.products import CHANNEL, WeightKind
from octavo.backends.native.library import Context
from octavo.weights.gguf import GGUFType

WIDE = ("SmolLM2 gate", "Qwen-0.5B gate", "Qwen-1.5B down")  # 1,024 columns and more
NARROW = ("SmolLM2 q k v", "SmolLM2 output", "SmolLM2 down")  # 576 and 960: few panels to deal out
SMALL = ("SmolLM2 gate", "SmolLM2 down")  # below 2 MB in every format
LARGE = ("Qwen-0.5B gate", "Qwen-1.5B gate")  # 4 MB and more in bf16 and 8 bits
MANY_ROWS = (128, 512)
REPEATS = 5
BF16, Q8_0 = WeightKind.of(GGUFType.BF16), WeightKind.of(GGUFType.Q8_0)


def measure(context: Context) -> Iterator[Gate]:
    for name, shapes, required in (("N >= 1024", WIDE, 0.85), ("N = 576/960", NARROW, 0.78)):
        yield _of_peak(context, f"bf16 GEMM, M >= 128, {name}", shapes, BF16, required)
    yield _of_peak(context, "int8 GEMM, M >= 128, per channel", WIDE, CHANNEL, 0.82)
    groups = "int8 GEMM, M >= 128, groups of 32, activation scales for each"
    yield _of_peak(context, groups, WIDE, Q8_0, 0.62)
    small = (BF16, Q8_0, WeightKind.of(GGUFType.Q4_1), WeightKind.of(GGUFType.Q5_0))
    yield from _of_bandwidth(context, "under 2 MB", SMALL, small, 0.85)
    yield from _of_bandwidth(context, "from 4 MB", LARGE, (BF16, Q8_0), 0.92)


def _of_peak(context: Context, name: str, shapes: Sequence[str], kind: WeightKind, required: float) -> Gate:
    """The worst of the shapes and row counts."""
    found = [
        (figure.gops / limits.peak_gops(kind), figure, limits)
        for limits, figure in _figures(context, shapes, [kind], MANY_ROWS)
    ]
    return _worst("GEMM", name, found, required)


def _of_bandwidth(
    context: Context, size: str, shapes: Sequence[str], kinds: Sequence[WeightKind], required: float
) -> Iterator[Gate]:
    """The worst of the shapes, for each kind; all kinds of a shape take turns."""
    found = [
        (figure.weight_gb_per_s / limits.read_gb_per_s, figure, limits)
        for limits, figure in _figures(context, shapes, kinds, (1,))
    ]
    for kind in kinds:
        own = [entry for entry in found if entry[1].type == kind.name]
        yield _worst("GEMV", f"GEMV M = 1, {kind.name}, {size}", own, required)


def _figures(
    context: Context, shapes: Sequence[str], kinds: Sequence[WeightKind], rows: Sequence[int]
) -> Iterator[tuple[Limits, Figure]]:
    for shape in SHAPES:
        if shape.name in shapes:
            limits, figures = measure_shape(context, shape, kinds, rows, REPEATS, peers=False)
            yield from ((limits, figure) for figure in figures)


def _worst(section: str, name: str, found: Sequence[tuple[float, Figure, Limits]], required: float) -> Gate:
    share, figure, limits = min(found, key=lambda entry: entry[0])
    state = State(limits.barrier_ns, limits.read_gb_per_s)
    note = f"worst: {figure.shape}, M = {figure.rows}, {figure.us:.0f} us"
    return Gate(section, name, "%", required, share, state, of_floor=figure.of_floor, note=note)
