"""Rotary frequencies from a base and a scaling."""

from __future__ import annotations

from octavo.errors import UnsupportedModelError
from octavo.graph.ops import Rotary
from octavo.models.config import RopeScaling

UNSCALED = RopeScaling()


def rotary(head_size: int, base: float, scaling: RopeScaling = UNSCALED) -> Rotary:
    """base^(-2i / head_size) for each pair i, over the scaling's divisors. Source: RoFormer, arXiv 2104.09864."""
    pairs = head_size // 2
    divisors = scaling.divisors or (1.0,) * pairs
    if len(divisors) != pairs:
        raise UnsupportedModelError(f"{len(divisors)} rotary factors for heads of {head_size} columns")
    return Rotary(tuple(base ** (-2 * i / head_size) / (scaling.divisor * divisors[i]) for i in range(pairs)))
