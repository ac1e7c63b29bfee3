"""Every required speed as pass or fail.

    scripts/bench [--only SECTION ...] [--models DIR] [--openvino PYTHON] [--llama-bench BINARY]
        [--out DIR]

Rows are printed, and gates.json and gates.md in --out written, as figures come; a section that breaks is noted there
and the others go on. Exits with 1 if a gate fails or a section breaks. Bandwidth and barrier stand beside each figure:
compare only what was measured in the same state of the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gates import attention, models, overheads, products
from benchmarks.gates.gate import HEADER, Gate, as_row
from benchmarks.machine import Ceilings, measure_ceilings
from octavo.backends.native.library import Context
from octavo.engine.machine import read_machine
from tests import real_models

SECTIONS = ("products", "attention", "prefill", "single", "throughput", "models", "loading", "steps")


@dataclass
class Report:
    """What has been found so far, on the screen and in files."""

    folder: Path
    ceilings: Ceilings
    gates: list[Gate] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # sections and what went wrong
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, gate: Gate) -> None:
        self.gates.append(gate)
        print(as_row(gate), flush=True)
        self.write()

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        result = {
            "ceilings": self.ceilings.as_dict(),
            "gates": [gate.as_dict() for gate in self.gates],
            "broken": self.broken,
            "seconds": self.seconds,
        }
        (self.folder / "gates.json").write_text(json.dumps(result, indent=2) + "\n")
        (self.folder / "gates.md").write_text("\n".join([HEADER, *map(as_row, self.gates)]) + "\n")


def main() -> int:
    args = _arguments()
    context = Context(None, read_machine().num_cores)
    sections = _sections(context, args)
    report = Report(args.out, measure_ceilings(context))
    print(HEADER)
    for name in args.only or SECTIONS:
        _run(name, sections[name], report)
    failed = sum(not gate.passed for gate in report.gates)
    print(f"\n{len(report.gates) - failed} of {len(report.gates)} gates passed")
    for name, problem in report.broken.items():
        print(f"{name} broke off: {problem}")
    return int(failed > 0 or bool(report.broken))


def _run(name: str, section: Callable[[], Iterator[Gate]], report: Report) -> None:
    began = time.monotonic()
    try:
        for gate in section():
            report.add(gate)
    except Exception as error:  # noqa: BLE001 - whatever it was, the other sections are worth having
        traceback.print_exc()
        report.broken[name] = repr(error)
    report.seconds[name] = round(time.monotonic() - began, 1)
    report.write()


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
        "models": lambda: models.larger(context, files(), args.llama_bench),
        "loading": lambda: overheads.loading(context, files()),
        "steps": lambda: overheads.steps(context, files()),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=SECTIONS)
    parser.add_argument("--models", type=Path, metavar="DIR", help="where the GGUF files are; default: fetch them")
    parser.add_argument("--openvino", type=Path, metavar="PYTHON", help="of an environment with openvino-genai")
    parser.add_argument("--llama-bench", type=Path, metavar="BINARY", help="of llama.cpp, built for this machine")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), metavar="DIR")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
