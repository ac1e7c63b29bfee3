"""Seeds of the sampler: 64 bits, one for each answer, all from one number."""

from __future__ import annotations

_UINT64 = 2**64 - 1


def seed_of_request(engine_seed: int, number: int) -> int:
    """The seed of the request that is the `number`-th without one of its own."""
    return _mixed(_mixed(engine_seed & _UINT64) + number)


def seed_of_choice(request_seed: int, index: int) -> int:
    """The seed of one of several answers to a request; the first has the request's own."""
    return request_seed & _UINT64 if index == 0 else _mixed(_mixed(request_seed & _UINT64) ^ index)


def _mixed(x: int) -> int:
    """Source: splitmix64 of Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014."""
    x = (x + 0x9E3779B97F4A7C15) & _UINT64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _UINT64
    return x ^ (x >> 31)
