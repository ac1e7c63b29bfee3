"""One required speed, time or size and what was found."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from benchmarks.machine import State


@dataclass(frozen=True, slots=True)
class Gate:
    """`required` of `unit` is needed and `measured` found; or, where given, the same of the machine's limit.

    `at_most`: no more than `required` is allowed. `of_floor` is which part of what the machine could do at that moment
    was reached, None where that is not known.
    """

    section: str
    name: str
    unit: str
    required: float
    measured: float
    state: State
    of_floor: float | None = None
    required_of_floor: float | None = None
    note: str = ""
    at_most: bool = False

    @property
    def passed(self) -> bool:
        if self.measured <= self.required if self.at_most else self.measured >= self.required:
            return True
        return self.required_of_floor is not None and (self.of_floor or 0.0) >= self.required_of_floor

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "passed": self.passed}


HEADER = "| | gate | measured | required | of floor | machine | note |\n|---|---|---|---|---|---|---|"


def as_row(gate: Gate) -> str:
    required = f"{'<=' if gate.at_most else '>='} {spell(gate.required, gate.unit)}"
    if gate.required_of_floor is not None:
        required += f" or {gate.required_of_floor:.0%} of floor"
    cells = (
        "pass" if gate.passed else "FAIL",
        f"{gate.section}: {gate.name}",
        spell(gate.measured, gate.unit),
        required,
        "" if gate.of_floor is None else f"{gate.of_floor:.0%}",
        f"{gate.state.name}: {gate.state.barrier_ns:.0f} ns, {gate.state.read_gb_per_s:.0f} GB/s",
        gate.note,
    )
    return "| " + " | ".join(cells) + " |"


def spell(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1%}"
    if unit == "x":
        return f"{value:.2f}x"
    if unit == "s":
        return f"{value:.2f} s"
    return f"{value:,.0f} {unit}"
