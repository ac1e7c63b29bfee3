"""The binding and the thread team: what ctypes believes of the C structures, who owns what, what idles."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.native import abi, instructions
from octavo.backends.native.assemble import ACTIVATIONS
from octavo.backends.native.kv_layout import KvLayout
from octavo.backends.native.library import (
    Context,
    KvCache,
    PackedWeight,
    Peak,
    dequantize,
    kv_page_bytes,
    supported_isas,
)
from octavo.config import BLOCK_TOKENS
from octavo.errors import ConfigError, EngineError, OctavoError, UnsupportedModelError
from octavo.graph.ops import KvLayer
from octavo.quant.gguf import Layout, layout_of
from octavo.step import KvGroup
from octavo.weights.gguf import GGUFType
from tests.native.harness import random_tensor

HEADER = Path(__file__).parents[2] / "csrc" / "include" / "octavo.h"

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "oct_buffer": abi.Buffer,
    "oct_kv_group": abi.KvGroup,
    "oct_embed": abi.Embed,
    "oct_rotary_table": abi.RotaryTable,
    "oct_rms_norm": abi.RmsNorm,
    "oct_quantize": abi.Quantize,
    "oct_linear": abi.Linear,
    "oct_gated_linear": abi.GatedLinear,
    "oct_rope_kv": abi.RopeKv,
    "oct_attention": abi.Attention,
    "oct_select_rows": abi.SelectRows,
    "oct_sample": abi.Sample,
    "oct_moe": abi.Moe,
    "oct_instruction": abi.Instruction,
    "oct_instruction_time": abi.InstructionTime,
    "oct_sampling": abi.Sampling,
    "oct_step": abi.Step,
}

CONSTANTS: dict[str, int] = {
    **{f"OCT_OP_{name.upper()}": code for name, code in abi.OP_CODES.items()},
    **{f"OCT_LAYOUT_{layout.name}": layout for layout in Layout},
    **{f"OCT_BUFFER_{kind.name}": kind for kind in instructions.BufferKind},
    **{f"OCT_ROWS_{space.name}": space for space in instructions.RowSpace},
    **{f"OCT_{name.upper()}": code for name, code in ACTIVATIONS.items()},
    **{f"OCT_PEAK_{peak.name}": peak for peak in Peak},
    "OCT_BLOCK_TOKENS": BLOCK_TOKENS,
}


def field_names(structure: type[ctypes.Structure]) -> list[str]:
    names = [field[0] for field in structure._fields_]
    return [name for name in names if (structure, name) != (abi.Instruction, "operation")]


def test_structures_and_constants_are_those_of_the_header(tmp_path: Path) -> None:
    """A field moved in one file only would send every pointer after it astray."""
    expected: dict[str, int] = dict(CONSTANTS)
    lines = [f'printf("{name} %d\\n", (int){name});' for name in CONSTANTS]
    for c_name, structure in STRUCTURES.items():
        expected[f"sizeof({c_name})"] = ctypes.sizeof(structure)
        lines.append(f'printf("sizeof({c_name}) %d\\n", (int)sizeof({c_name}));')
        for name in field_names(structure):
            expected[f"{c_name}.{name}"] = getattr(structure, name).offset
            lines.append(f'printf("{c_name}.{name} %d\\n", (int)offsetof({c_name}, {name}));')
    source = tmp_path / "layout.c"
    source.write_text(f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n' + "\n".join(lines) + "\n}\n")
    subprocess.run(["gcc", "-o", tmp_path / "layout", source], check=True)
    output = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout
    found = {name: int(value) for name, value in (line.rsplit(" ", 1) for line in output.splitlines())}
    assert found == expected


def test_scalar_is_always_there_and_the_best_is_the_default() -> None:
    assert "scalar" in supported_isas()
    assert Context().isa == supported_isas()[0]
    assert Context("scalar").isa == "scalar"


@pytest.mark.parametrize("isa, threads, message", [("sse9", 1, "sse9"), (None, 0, "threads is 0"), (None, -3, "-3")])
def test_impossible_contexts_are_refused(isa: str | None, threads: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Context(isa, threads)


def test_instruction_sets_the_machine_lacks_are_refused() -> None:
    for isa in {"avx512", "avx2"} - set(supported_isas()):
        with pytest.raises(ConfigError, match=f"cannot run the instruction set {isa}"):
            Context(isa)


@pytest.mark.parametrize("peak", Peak)
def test_peaks_can_be_measured_on_every_instruction_set(peak: Peak) -> None:
    for isa in supported_isas():
        assert Context(isa).peak_gops(peak) > 0


def test_an_unknown_peak_is_refused() -> None:
    with pytest.raises(EngineError, match="no peak 3"):
        Context("scalar").peak_gops(3)  # type: ignore[arg-type]


def test_a_closed_context_is_an_error_and_not_a_crash() -> None:
    context = Context("scalar")
    context.close()
    context.close()
    with pytest.raises(EngineError, match="closed"):
        context.barrier_ns()


def team_threads() -> set[str]:
    tasks = Path("/proc/self/task")
    return {tid.name for tid in tasks.iterdir() if (tid / "comm").read_text().startswith("octavo-")}


def test_contexts_leave_no_thread_behind() -> None:
    before = team_threads()
    for _ in range(100):
        context = Context("scalar", 3)
        assert len(team_threads() - before) == 2
        context.close()
    assert team_threads() == before


def test_more_threads_than_processors_still_meet_quickly() -> None:
    """Pure spinning would give every barrier a scheduler's time slice: minutes, not seconds."""
    context = Context("scalar", len(os.sched_getaffinity(0)) + 1)
    start = time.monotonic()
    context.barrier_ns(10_000)
    assert time.monotonic() - start < 10.0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_a_team_as_large_as_the_machine_has_a_processor_for_each_thread() -> None:
    """Left alone, two threads meet on one processor after a pause, and barriers take a hundred times as long."""
    processors = os.sched_getaffinity(0)
    before = team_threads()
    whole = Context("scalar", threads=len(processors))
    whole.barrier_ns(10)  # a thread binds itself before its first task
    bound = [os.sched_getaffinity(int(tid)) for tid in team_threads() - before]
    assert all(len(affinity) == 1 for affinity in bound)
    assert len(set.union(*bound)) == len(processors) - 1
    assert os.sched_getaffinity(0) == processors
    before = team_threads()
    part = Context("scalar", threads=len(processors) + 1)
    part.barrier_ns(10)
    assert all(os.sched_getaffinity(int(tid)) == processors for tid in team_threads() - before)
    whole.close()
    part.close()


def test_an_idle_team_uses_no_processor_time() -> None:
    before = team_threads()
    context = Context("scalar", 3)
    context.barrier_ns(10)
    mine = team_threads() - before
    time.sleep(0.5)
    busy_ns = processor_ns(mine)
    time.sleep(1.0)
    assert processor_ns(mine) - busy_ns < 1e-2 * 1e9
    context.close()


def processor_ns(tids: set[str]) -> int:
    return sum(int(Path("/proc/self/task", tid, "schedstat").read_text().split()[0]) for tid in tids)


def test_signals_reach_only_the_callers_threads() -> None:
    """Ctrl-C taken by a sleeping worker would never interrupt Python's main thread."""
    before = team_threads()
    context = Context("scalar", 2)
    (tid,) = team_threads() - before
    blocked = next(
        line.split()[1]
        for line in Path("/proc/self/task", tid, "status").read_text().splitlines()
        if line.startswith("SigBlk")
    )
    assert int(blocked, 16) & (1 << 1) and int(blocked, 16) & (1 << 14)  # SIGINT, SIGTERM
    context.close()


def test_an_unknown_layout_is_refused() -> None:
    tensor = random_tensor(np.random.default_rng(), GGUFType.Q4_0, (3, 256))
    with pytest.raises(UnsupportedModelError, match="no layout 9"):
        tensor.pack(Context("scalar"), 9)  # type: ignore[arg-type]


def test_weights_that_cannot_be_right_are_refused() -> None:
    context = Context("scalar")
    tensor = random_tensor(np.random.default_rng(), GGUFType.Q8_0, (4, 64))
    pack = {"context": context, "layout": Layout.GROUPED, "encoding": GGUFType.Q8_0, "shape": (4, 64)}
    refused: list[tuple[dict[str, object], str]] = [
        ({"shape": (4, 48)}, "48 columns, which is not a multiple of its blocks of 32"),
        ({"shape": (0, 64)}, "0 x 64"),
        ({"shape": (5, 64)}, r"takes 340 bytes, but there are 272"),
        ({"encoding": 99}, "99"),
        ({"row_order": np.array([0, 1, 2, 4], np.int32)}, r"row_order\[3\] is 4"),
        ({"row_order": np.array([0, 1, 2], np.int32)}, "row_order has shape"),
    ]
    for change, message in refused:
        with pytest.raises(UnsupportedModelError, match=message):
            PackedWeight(**{**pack, "data": tensor.data, **change})  # type: ignore[arg-type]


def test_layouts_of_unknown_and_unsupported_types_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="IQ1_S"):
        layout_of(GGUFType.IQ1_S, "int8")
    with pytest.raises(UnsupportedModelError, match="77"):
        layout_of(77, "bf16")
    with pytest.raises(UnsupportedModelError):
        dequantize(GGUFType.IQ1_S, np.zeros(50, np.uint8), 256)


def test_many_small_weights_take_little_more_than_their_bytes() -> None:
    """A huge page for each matrix of a small model would multiply its memory."""
    context = Context("scalar")
    tensor = random_tensor(np.random.default_rng(), GGUFType.Q4_0, (64, 1024))
    before = resident_bytes()
    weights = [tensor.pack(context, Layout.GROUPED) for _ in range(200)]
    assert resident_bytes() - before < 1.5 * sum(weight.bytes for weight in weights) + (8 << 20)


def test_populated_kv_memory_is_resident_and_keeps_what_it_holds() -> None:
    """In the order of blocks through all layers, and no more than asked for but for a huge page."""
    kv = KvCache([abi.KvGroup(2000, 2, 64, 0)], [0, 0, 0])
    block = os.urandom(3 * kv_page_bytes(abi.KvGroup(1, 2, 64, 0)))
    kv.write_block(0, 7, block)
    before = resident_bytes()
    taken = kv.populate(20 << 20)
    assert 20 << 20 <= taken <= 22 << 20
    assert taken - (6 << 20) <= resident_bytes() - before <= taken + (1 << 20)
    total = taken
    while taken := kv.populate(20 << 20):
        total += taken
    assert total == 2000 * len(block)
    assert kv.read_block(0, 7) == block
    assert kv.populate(1) == 0
    kv.close()


def test_kv_memory_is_resident_only_where_written() -> None:
    before = resident_bytes()
    layout = KvLayout([KvLayer(index, 4, 64) for index in range(8)])
    cache = layout.cache([4096])
    assert layout.groups == (KvGroup(8, None, 2 * 8 * 4 * 64 * 16 * 2),)
    assert resident_bytes() - before < 16 << 20
    cache.close()


@pytest.mark.parametrize("group", [(0, 1, 64, 0), (1, 0, 64, 0), (1, 1, 63, 0), (1, 1, -2, 0), (1, 1, 64, -1)])
def test_impossible_kv_caches_are_refused(group: tuple[int, int, int, int]) -> None:
    with pytest.raises(OctavoError, match="KV cache"):
        KvCache([abi.KvGroup(*group)], [0])


@pytest.mark.parametrize(("layer_groups", "message"), [([], "without layers"), ([0, 1], "layer 1 .* in group 1")])
def test_kv_layers_without_a_group_are_refused(layer_groups: list[int], message: str) -> None:
    with pytest.raises(OctavoError, match=message):
        KvCache([abi.KvGroup(1, 1, 64, 0)], layer_groups)


def test_layers_are_grouped_by_window_and_shape() -> None:
    windows = [512, None, 100, 512, None]
    layers = [KvLayer(index, 2, 64, window) for index, window in enumerate(windows)] + [KvLayer(5, 1, 64)]
    page = 2 * 2 * 64 * 16 * 2
    assert KvLayout(layers).groups == (
        KvGroup(2, None, 2 * page),
        KvGroup(1, None, page // 2),
        KvGroup(2, 512, 2 * page),
        KvGroup(1, 100, page),
    )
    with pytest.raises(OctavoError, match="not from 0 on"):
        KvLayout(layers[1:])


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
