"""Every required speed as pass or fail.

    scripts/bench [--only SECTION ...] [--models DIR] [--openvino PYTHON] [--out DIR]

Writes gates.json and gates.md to --out. Exits with 1 if a gate fails. Bandwidth and barrier stand beside each figure:
compare only what was measured in the same state of the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.gates import attention, models, products
from benchmarks.gates.gate import HEADER, Gate, as_row
from benchmarks.machine import Ceilings, measure_ceilings
from octavo.backends.native.library import Context
from octavo.engine.machine import read_machine
from tests import real_models


def main() -> int:
    args = _arguments()
    context = Context(None, read_machine().num_cores)
    sections = _sections(context, args)
    ceilings = measure_ceilings(context)
    print(HEADER)
    gates = []
    for name in args.only or sections:
        for gate in sections[name]():
            gates.append(gate)
            print(as_row(gate), flush=True)
    _write(args.out, ceilings, gates)
    failed = sum(not gate.passed for gate in gates)
    print(f"\n{len(gates) - failed} of {len(gates)} gates passed")
    return int(failed > 0)


def _sections(context: Context, args: argparse.Namespace) -> Mapping[str, Callable[[], Iterator[Gate]]]:
    def files() -> models.Files:
        def path(name: str) -> Path:
            return args.models / real_models.MODELS[name].file if args.models else real_models.fetch(name)

        return models.Files(path("smollm2"), path("gemma3"), path("qwen0.5"), path("qwen1.5"))

    return {
        "products": lambda: products.measure(context),
        "attention": lambda: attention.measure(context),
        "prefill": lambda: models.prefill(context, files()),
        "single": lambda: models.single(context, files()),
        "throughput": lambda: models.throughput(context, files(), args.openvino),
        "models": lambda: models.larger(context, files()),
    }


def _write(folder: Path, ceilings: Ceilings, gates: list[Gate]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    result = {"ceilings": ceilings.as_dict(), "gates": [gate.as_dict() for gate in gates]}
    (folder / "gates.json").write_text(json.dumps(result, indent=2) + "\n")
    (folder / "gates.md").write_text("\n".join([HEADER, *map(as_row, gates)]) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("products", "attention", "prefill", "single", "throughput", "models")
    parser.add_argument("--only", action="append", choices=names)
    parser.add_argument("--models", type=Path, metavar="DIR", help="where the GGUF files are; default: fetch them")
    parser.add_argument("--openvino", type=Path, metavar="PYTHON", help="of an environment with openvino-genai")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), metavar="DIR")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
