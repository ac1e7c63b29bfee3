"""The limits of this machine, through our own library: python -m benchmarks.ceilings [--isa ISA] [--json OUT]"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.machine import Ceilings, measure_ceilings
from octavo.backends.native.library import Context
from octavo.engine.machine import read_machine

ROWS = (
    ("barrier, ns", "barrier_ns", "{:.0f}"),
    ("read, huge pages, GB/s", "read_huge_pages_gb_per_s", "{:.1f}"),
    ("read, small pages, GB/s", "read_small_pages_gb_per_s", "{:.1f}"),
    ("fp32, GFLOP/s", "f32_gflops", "{:.0f}"),
    ("bf16, GFLOP/s", "bf16_gflops", "{:.0f}"),
    ("int8, GOP/s", "int8_gops", "{:.0f}"),
)


def measure(isa: str | None) -> list[Ceilings]:
    """On one thread and on all."""
    ceilings = []
    for threads in sorted({1, read_machine().num_cores}):
        context = Context(isa, threads)
        ceilings.append(measure_ceilings(context))
        context.close()
    return ceilings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="an instruction set below the best")
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    found = measure(args.isa)
    print(f"| {found[0].isa} | " + " | ".join(f"{ceilings.threads} threads" for ceilings in found) + " |")
    print("|---" * (len(found) + 1) + "|")
    for title, name, form in ROWS:
        print(f"| {title} | " + " | ".join(form.format(ceilings.as_dict()[name]) for ceilings in found) + " |")
    if args.json is not None:
        args.json.write_text(json.dumps([ceilings.as_dict() for ceilings in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
