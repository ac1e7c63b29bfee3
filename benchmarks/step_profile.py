"""Where the time of a step goes, by kind of instruction.

    python -m benchmarks.step_profile MODEL [--rows R] [--context C] [--prompt P] [--steps N] [--json OUT]

A step of R requests that decode after C tokens each (64 and 165 unless given) and, with --prompt, one prompt of P
tokens, computed whole. Of each kind of instruction, in the order of a step: how many there are; what the threads worked
on them and how long they then waited for each other, both the mean of all threads; and its floor, the larger of its
bytes over the bandwidth and its operations over the peak, where it is a product or decodes. Figures are the mean of
that half of N steps that took neither longest nor shortest.

A thread that is late makes the others wait, so work and waiting of all kinds together are the time of a step. "The
rest" is arrays in Python, checks, waking the team and its last barrier. Looking at the clock makes a step of one row
about a tenth longer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.machine import State, measure_state
from octavo.backends.native.executor import NativeExecutor
from octavo.backends.native.instructions import Attention, GatedLinear, Linear, Operation, Sample
from octavo.backends.native.library import Context, PackedWeight, Peak
from octavo.config import BLOCK_TOKENS
from octavo.engine.machine import read_machine
from octavo.quant.gguf import Layout
from octavo.sampling_params import SamplingParams
from octavo.step import BlockCopy, RowStart, RowStep, StepPlan
from octavo.weights import references
from octavo.weights.loader import open_checkpoint
from octavo.weights.progress import ignore_progress

WARM_UP_STEPS = 3
LEAST_TOKEN_ID = 100
GREEDY = SamplingParams(temperature=0.0, max_tokens=1 << 20, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of instruction."""

    kind: str
    count: int
    work_ms: float
    wait_ms: float
    floor_ms: float | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine allowed beside the steps."""

    state: State
    bf16_gflops: float
    int8_gops: float


class Batch:
    """Rows of one executor that take the same step again and again, each time one token further."""

    def __init__(self, executor: NativeExecutor, num_rows: int, context: int, prompt: int, num_steps: int) -> None:
        rng = np.random.default_rng(0)
        length = max(context + num_steps + 1, prompt + 1)
        self._executor = executor
        self._num_groups = len(executor.kv_groups)
        self._blocks_of_row = -(-length // BLOCK_TOKENS)
        self._num_rows, self._num_computed, self._prompt = num_rows, context, prompt
        num_all_rows = num_rows + (prompt > 0)
        executor.allocate(
            [self._blocks_of_row * num_all_rows] * self._num_groups,
            max_num_seqs=num_all_rows,
            max_num_batched_tokens=num_rows + max(context, prompt, num_all_rows),
            max_model_len=length,
        )
        self._prompt_ids = rng.integers(LEAST_TOKEN_ID, executor.vocab_size, prompt).tolist()
        context_ids = rng.integers(LEAST_TOKEN_ID, executor.vocab_size, context).tolist()
        if num_rows > 0:
            self._fill(context_ids)

    def _fill(self, context_ids: list[int]) -> None:
        """One row computes the context, the others get copies of its blocks."""
        starts = tuple(RowStart(row, [*context_ids, LEAST_TOKEN_ID], 1, GREEDY) for row in range(self._num_rows))
        steps = [RowStep(0, 0, self._num_computed, self._blocks(0), samples=False)]
        steps += [RowStep(row, 0, 0, self._blocks(row), samples=False) for row in range(1, self._num_rows)]
        self._executor.execute(StepPlan(starts, tuple(steps)))
        copies = tuple(
            BlockCopy(source, destination, group)
            for row in range(1, self._num_rows)
            for group, blocks in enumerate(self._blocks(row))
            for source, destination in enumerate(blocks)
        )
        self._executor.execute(StepPlan((), (), copies))

    def _blocks(self, row: int) -> tuple[tuple[int, ...], ...]:
        first = row * self._blocks_of_row
        return (tuple(range(first, first + self._blocks_of_row)),) * self._num_groups

    def step(self) -> None:
        starts, steps = (), ()
        if self._prompt:
            row = self._num_rows
            starts = (RowStart(row, self._prompt_ids, self._prompt, GREEDY),)
            steps = (RowStep(row, 0, self._prompt, self._blocks(row), samples=True),)
        self._executor.execute(StepPlan(starts, steps, decoding=tuple(range(self._num_rows))))
        self._num_computed += 1


def measure(executor: NativeExecutor, batch: Batch, num_steps: int) -> tuple[npt.NDArray[np.float64], float]:
    """Milliseconds of each instruction, [instructions, (work, wait)], and of a whole call."""
    for _ in range(WARM_UP_STEPS):
        batch.step()
    times = executor.start_profile()
    found, calls = [], []
    for _ in range(num_steps):
        times[:] = 0
        began = time.perf_counter()
        batch.step()
        calls.append(1e3 * (time.perf_counter() - began))
        found.append(np.stack([times["work_ns"].mean(0), times["wait_ns"].mean(0)], axis=1) * 1e-6)
    middle = np.argsort(calls)[num_steps // 4 : num_steps - num_steps // 4]
    return np.mean(np.array(found)[middle], axis=0), float(np.mean(np.array(calls)[middle]))


def kind_of(operation: Operation, weights: Mapping[str, PackedWeight]) -> str:
    """The name of an operation, with the shape of its weight."""
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(operation).__name__).lstrip("_")
    match operation:
        case Linear() | Sample():
            return f"{name} {_shape(weights[operation.weight])}"
        case GatedLinear():
            return f"{name} 2 x {_shape(weights[operation.gate])}"
    return name


def _shape(weight: PackedWeight) -> str:
    rows, columns = weight.shape
    return f"{columns} -> {rows}"


@dataclass(frozen=True, slots=True)
class Floors:
    """The least time an operation can take, in milliseconds of a step."""

    executor: NativeExecutor
    limits: Limits
    num_tokens: int
    num_logit_rows: int
    decoding_context: int  # tokens that decoding rows see, all rows together
    has_prompt: bool

    def of(self, operation: Operation) -> float | None:
        match operation:
            case Linear():
                return self._product(self.num_tokens, operation.weight)
            case GatedLinear():
                return self._product(self.num_tokens, operation.gate, operation.up)
            case Sample():
                return self._product(self.num_logit_rows, operation.weight)
            case Attention() if not self.has_prompt:
                group = next(group for group in self.executor.kv_groups if group.window == operation.kv.window)
                token_bytes = group.block_bytes / group.num_layers / BLOCK_TOKENS
                return token_bytes * self.decoding_context / self.limits.state.read_gb_per_s * 1e-6
        return None

    def _product(self, num_rows: int, *names: str) -> float:
        weights = [self.executor.weights[name] for name in names]
        num_bytes = sum(weight.bytes for weight in weights)
        operations = 2 * num_rows * sum(weight.shape[0] * weight.shape[1] for weight in weights)
        is_bf16 = weights[0].layout is Layout.BF16
        peak = self.limits.bf16_gflops if is_bf16 else self.limits.int8_gops
        return max(num_bytes / self.limits.state.read_gb_per_s, operations / peak) * 1e-6


def lines_of(executor: NativeExecutor, ms: npt.NDArray[np.float64], floors: Floors) -> Iterator[Line]:
    operations = [instruction.operation for instruction in executor.instructions]
    kinds = [kind_of(operation, executor.weights) for operation in operations]
    for kind, count in Counter(kinds).items():
        indices = [index for index, other in enumerate(kinds) if other == kind]
        least = [floors.of(operations[index]) for index in indices]
        floor = None if None in least else sum(value for value in least if value is not None)
        work, wait = ms[indices].sum(0)
        yield Line(kind, count, float(work), float(wait), floor)


def print_table(lines: list[Line], call_ms: float) -> None:
    print("| instruction | count | work ms | wait ms | share | floor ms |")
    print("|---|---|---|---|---|---|")
    for line in lines:
        share = (line.work_ms + line.wait_ms) / call_ms
        floor = "" if line.floor_ms is None else f"{line.floor_ms:.2f}"
        print(f"| {line.kind} | {line.count} | {line.work_ms:.2f} | {line.wait_ms:.2f} | {share:.1%} | {floor} |")
    rest = call_ms - sum(line.work_ms + line.wait_ms for line in lines)
    print(f"| the rest | | {rest:.2f} | | {rest / call_ms:.1%} | |")
    floor = sum(line.floor_ms or 0.0 for line in lines)
    waits = sum(line.wait_ms for line in lines)
    print(f"| all | | {call_ms:.2f} | {waits:.2f} | | {floor:.2f} |")


def measure_limits(threads: int) -> Limits:
    context = Context(None, threads)
    limits = Limits(measure_state(context), context.peak_gops(Peak.BF16), context.peak_gops(Peak.INT8))
    context.close()
    return limits


def main() -> None:
    args = _arguments()
    with open_checkpoint(references.resolve(args.model, ignore_progress)) as checkpoint:
        executor = NativeExecutor(
            checkpoint,
            isa=args.isa,
            threads=args.threads,
            activation_dtype=args.activation_dtype,
            kv_cache_dtype=args.kv_cache_dtype,
        )
    limits = measure_limits(args.threads)
    batch = Batch(executor, args.rows, args.context, args.prompt, args.steps + WARM_UP_STEPS)
    ms, call_ms = measure(executor, batch, args.steps)
    floors = Floors(
        executor,
        limits,
        num_tokens=args.rows + args.prompt,
        num_logit_rows=args.rows + (args.prompt > 0),
        has_prompt=args.prompt > 0,
        decoding_context=args.rows * (args.context + args.steps // 2),
    )
    lines = list(lines_of(executor, ms, floors))
    executor.close()
    num_barriers = sum(instruction.barrier for instruction in executor.instructions)
    print(
        f"{args.rows} rows at context {args.context}, prompt of {args.prompt}; {limits.state}, "
        f"int8 {limits.int8_gops:.0f} GOP/s, bf16 {limits.bf16_gflops:.0f} GFLOP/s; {num_barriers} barriers"
    )
    print_table(lines, call_ms)
    if args.json is not None:
        figures = {"limits": asdict(limits), "call_ms": call_ms, "lines": [asdict(line) for line in lines]}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a file or a name, as for `octavo serve`")
    parser.add_argument("--rows", type=int, default=64, help="requests that decode")
    parser.add_argument("--context", type=int, default=165, help="tokens that each of them has seen")
    parser.add_argument("--prompt", type=int, default=0, help="tokens of a prompt computed in the same step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--activation-dtype", choices=["bf16", "int8"], default="int8")
    parser.add_argument("--kv-cache-dtype", choices=["bf16", "int8"], default="bf16")
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser.parse_args()


if __name__ == "__main__":
    main()
