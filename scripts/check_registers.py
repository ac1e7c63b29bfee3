"""Counts vector registers that hot loops keep on the stack: check_registers.py OBJECT_FILE

A register tile is fast only while its sums stay in registers; one rolled loop over them, or a compiler that prefers
memory, costs half the speed and no test notices. A hot loop is an innermost loop with several dot products or
multiply-adds of full width, or a loop around others that has many of them itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(\S+)\s*(.*?)\s*(?:#.*)?$")
TARGET = re.compile(r"^([0-9a-f]+) <")
ARITHMETIC = re.compile(r"^(vdpbf16ps|vpdpbusd|vpdpwssd|vfn?m(add|sub)\d+ps)$")
ON_STACK = re.compile(r"\(%r[sb]p")
LEAST_ARITHMETIC = 4
LEAST_AROUND_OTHERS = 48


@dataclass(frozen=True)
class Instruction:
    address: int
    name: str
    operands: str

    @property
    def is_arithmetic(self) -> bool:
        return "%zmm" in self.operands and ARITHMETIC.match(self.name) is not None

    @property
    def keeps_on_stack(self) -> bool:
        return "%zmm" in self.operands and ON_STACK.search(self.operands) is not None

    @property
    def target(self) -> int | None:
        found = TARGET.match(self.operands) if self.name.startswith("j") else None
        return int(found[1], 16) if found else None


def functions(object_file: str) -> Iterator[tuple[str, list[Instruction]]]:
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", object_file]
    name, body = "", []
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if header := FUNCTION.match(line):
            yield name, body
            name, body = header[1], []
        elif found := INSTRUCTION.match(line):
            body.append(Instruction(int(found[1], 16), found[2], found[3]))
    yield name, body


def loops(body: list[Instruction]) -> Iterator[tuple[int, list[Instruction]]]:
    """From the target of each jump backward to the jump, without the loops inside; and how much makes it a hot one."""
    spans = {(jump.target, jump.address) for jump in body if jump.target is not None and jump.target <= jump.address}
    for first, last in sorted(spans):
        inner = [(a, b) for a, b in spans if first <= a and b <= last and (a, b) != (first, last)]
        own = [i for i in body if first <= i.address <= last and not any(a <= i.address <= b for a, b in inner)]
        yield LEAST_AROUND_OTHERS if inner else LEAST_ARITHMETIC, own


def main() -> int:
    num_hot, failed = 0, False
    for name, body in functions(sys.argv[1]):
        for least_arithmetic, loop in loops(body):
            if sum(instruction.is_arithmetic for instruction in loop) < least_arithmetic:
                continue
            num_hot += 1
            kept = sum(instruction.keeps_on_stack for instruction in loop)
            if kept:
                failed = True
                print(f"{name}: the loop at {loop[0].address:x} refers {kept} times to vectors on the stack")
    print(f"{num_hot} hot loops")
    if num_hot == 0:
        print("none found: is this the object of the AVX-512 kernels?")
    return int(failed or num_hot == 0)


if __name__ == "__main__":
    sys.exit(main())
