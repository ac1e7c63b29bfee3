"""How long a model takes to load and what the process holds meanwhile.

    python -m benchmarks.loading MODEL.gguf [--activation-dtype bf16] [--quantization int8] [--engine] [--json OUT]

Loading opens the file and packs its weights; with --engine it makes a whole engine, tokenizer and all. Run once for a
figure: the memory of a process that has done anything else before says nothing. A file that was not read lately comes
from the disk: the second run tells how fast packing is. `growth` is the peak less what was resident before.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo.backends.native.executor import NativeExecutor
from octavo.engine.machine import read_machine
from octavo.weights.loader import open_checkpoint

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Loading:
    """Memory in bytes; `before` and `peak` are what was resident of the process."""

    seconds: float
    packed_bytes: int
    before_bytes: int
    peak_bytes: int

    @property
    def peak_ratio(self) -> float:
        return self.peak_bytes / self.packed_bytes

    @property
    def growth_ratio(self) -> float:
        return (self.peak_bytes - self.before_bytes) / self.packed_bytes

    def __str__(self) -> str:
        return (
            f"{self.seconds:.2f} s; packed {self.packed_bytes / MIB:.1f} MiB, resident before "
            f"{self.before_bytes / MIB:.1f}, at most {self.peak_bytes / MIB:.1f}; peak over packed "
            f"{self.peak_ratio:.2f}, growth over packed {self.growth_ratio:.2f}"
        )


def measure(load: Callable[[], int]) -> Loading:
    """`load` gives the bytes of the weights it packed. Call it once in a process."""
    before_bytes = _resident_bytes("VmRSS")
    began = time.perf_counter()
    packed_bytes = load()
    seconds = time.perf_counter() - began
    return Loading(seconds, packed_bytes, before_bytes, _resident_bytes("VmHWM"))


def weights(args: argparse.Namespace) -> Callable[[], int]:
    def load() -> int:
        with open_checkpoint(args.model) as checkpoint:
            executor = NativeExecutor(
                checkpoint,
                isa=None,
                threads=read_machine().num_cores,
                activation_dtype=args.activation_dtype,
                quantization=args.quantization,
            )
        return executor.weight_bytes

    return load


def engine(args: argparse.Namespace) -> Callable[[], int]:
    # Imported only here: without an engine, its code takes no memory either.
    from octavo.config import EngineArgs
    from octavo.engine.build import build_engine

    wanted = EngineArgs(str(args.model), activation_dtype=args.activation_dtype, quantization=args.quantization)
    return lambda: build_engine(wanted).config.weight_bytes


def _resident_bytes(field: str) -> int:
    """A size from the process's status: VmRSS now, VmHWM at most so far."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--activation-dtype", choices=("int8", "bf16"), default="int8")
    parser.add_argument("--quantization", choices=("int8",))
    parser.add_argument("--engine", action="store_true", help="all of an engine, not only the weights")
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    loading = measure(engine(args) if args.engine else weights(args))
    from benchmarks.machine import state_now  # only now: what it takes is no memory of loading

    state = state_now()
    print(f"{loading}; {state}")
    if args.json is not None:
        ratios = {"peak_ratio": loading.peak_ratio, "growth_ratio": loading.growth_ratio}
        args.json.write_text(json.dumps(asdict(loading) | ratios | asdict(state), indent=2) + "\n")


if __name__ == "__main__":
    main()
