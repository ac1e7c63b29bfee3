"""Where a lowered program keeps its values and where its threads must wait for each other.

Lowering gives every value a buffer of its own; here values that are never alive at the same time come to share one, and
barriers go exactly where an instruction touches what another has written, or writes what another has read, since the
last barrier.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from octavo.backends.native.instructions import Access, Buffer, Instruction, Operation, ProgramText


def place(buffers: Sequence[Buffer], operations: Sequence[Operation]) -> ProgramText:
    """The program of `operations`, which run in this order, with as few buffers and barriers as they allow."""
    shared_buffers, renumbered = share_buffers(buffers, operations)
    return ProgramText(tuple(shared_buffers), tuple(insert_barriers(renumbered)))


def share_buffers(buffers: Sequence[Buffer], operations: Sequence[Operation]) -> tuple[list[Buffer], list[Operation]]:
    """Gives each buffer, from its first use to its last, one that nobody else of its shape uses meanwhile."""
    last_use = {number: index for index, operation in enumerate(operations) for number in operation.buffers()}
    shared: list[Buffer] = []
    free: defaultdict[Buffer, deque[int]] = defaultdict(deque)
    numbers: dict[int, int] = {}
    renumbered: list[Operation] = []
    for index, operation in enumerate(operations):
        used = sorted(operation.buffers())
        for number in used:
            if number not in numbers:
                numbers[number] = _take(buffers[number], free, shared)
        renumbered.append(operation.renumbered(numbers))
        for number in used:
            if last_use[number] == index:
                free[buffers[number]].append(numbers[number])
    return shared, renumbered


def _take(buffer: Buffer, free: defaultdict[Buffer, deque[int]], shared: list[Buffer]) -> int:
    """The free buffer of this shape that has rested longest, or a new one."""
    if free[buffer]:
        return free[buffer].popleft()
    shared.append(buffer)
    return len(shared) - 1


def insert_barriers(operations: Sequence[Operation]) -> list[Instruction]:
    """Marks the operations after which the threads wait; the end of a program needs no mark."""
    barriers = [False] * len(operations)
    reads: list[Access] = []
    writes: list[Access] = []
    for index, operation in enumerate(operations):
        if _conflict(operation.reads(), writes) or _conflict(operation.writes(), [*reads, *writes]):
            barriers[index - 1] = True
            reads, writes = [], []
        reads.extend(operation.reads())
        writes.extend(operation.writes())
    return [Instruction(operation, barrier) for operation, barrier in zip(operations, barriers, strict=True)]


def _conflict(accesses: Sequence[Access], earlier: Sequence[Access]) -> bool:
    return any(access.overlaps(other) for access in accesses for other in earlier)
