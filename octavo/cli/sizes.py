"""Numbers as people write them: 8k tokens, 2GiB, 500ms."""

from __future__ import annotations

import re

import typer

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")

_LIMIT = 2**63

# As in vLLM: a small letter counts in thousands, a capital in 1024s.
_COUNT_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
}
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0}


def parse_count(text: str | int) -> int:
    """A positive count: 8192, 8k (8000), 8K (8192), 1.5k."""
    number, unit = _split(text)
    if unit not in _COUNT_UNITS:
        raise typer.BadParameter(f"{text!r} is not a count; write 8192, 8k (8000) or 8K (8192)")
    return _positive(text, number * _COUNT_UNITS[unit])


def parse_bytes(text: str | int) -> int:
    """A positive number of bytes: 2147483648, 2GiB, 512MiB, 1.5GB."""
    number, unit = _split(text)
    if unit.lower() not in _BYTE_UNITS:
        raise typer.BadParameter(f"{text!r} is not a size; write 2GiB, 512MiB or a number of bytes")
    return _positive(text, number * _BYTE_UNITS[unit.lower()])


def parse_seconds(text: str | float) -> float:
    """A positive time in seconds: 500ms, 2s, 0.5, 1min."""
    number, unit = _split(text)
    if unit not in _TIME_UNITS or number == 0:
        raise typer.BadParameter(f"{text!r} is not a time; write 500ms, 2s or 0.5 (seconds)")
    return number * _TIME_UNITS[unit]


def _split(text: str | float) -> tuple[float, str]:
    match = _NUMBER.fullmatch(str(text))  # typer parses defaults too
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a number")
    return float(match[1]), match[2]


def _positive(text: str | int, value: float) -> int:
    if not 1 <= value < _LIMIT or value != int(value):
        raise typer.BadParameter(f"{text!r} is {value:g}; it must be a whole number from 1 to {_LIMIT - 1}")
    return int(value)
