"""What keys are stored divided by, so that int8 codes lose little of them.

All channels of a head share one scale a token, and some channels are many times larger than the rest: where a key has
a large bias, a large norm weight, or large rows in its matrix. Scores stay the same if a channel of the keys is divided
by a constant and that of the queries multiplied by it; the rounding error of a score does not. With K and Q the typical
magnitudes of a channel in keys and queries, it is about

    norm_p(K / c) * norm_2(Q c)        norm_p: of p = 4, between the average (2) and the largest (infinity)

times the step of the codes, and least for c = cbrt(K^2 / Q). K and Q follow from the weights: see docs/decisions/0006.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.backends.native.library import FloatArray
from octavo.graph.ops import Attention, HeadNorm, Linear, RmsNorm, Rope, Rotary, Tensor, Weight

ValuesOf = Callable[[Weight], FloatArray]

TYPICAL_CONTEXT_TOKENS = 1024
SMALLEST_SHARE = 1e-3  # of the largest channel of a head: what a channel counts at least


def key_divisors(attention: Attention, values_of: ValuesOf) -> FloatArray:
    """Positive fp32 [G, C] for keys and values of G heads of C channels.

    `values_of(weight)` gives the values of a weight, fp32 in its shape.
    """
    kv = attention.kv
    keys = _magnitudes(attention.k, kv.num_kv_heads, kv.head_size, values_of)
    queries = _magnitudes(attention.q, attention.num_heads, kv.head_size, values_of)
    queries = _root_mean_square(queries.reshape(kv.num_kv_heads, -1, kv.head_size), axis=1)
    divisors: FloatArray = np.cbrt(_at_least_a_share(keys) ** 2 / _at_least_a_share(queries)).astype(np.float32)
    return divisors


def _magnitudes(node: Tensor, num_heads: int, head_size: int, values_of: ValuesOf) -> FloatArray:
    """How large each channel of rope(head_norm(linear)) typically is, [heads, C]; rope and norm may be missing."""
    inner = node.x if isinstance(node, Rope) else node
    if isinstance(inner, HeadNorm):  # whose channels are about 1 before the weights
        magnitudes = np.tile(np.abs(values_of(inner.weight)), (num_heads, 1))
    elif isinstance(inner, Linear):
        magnitudes = _outputs(inner, values_of).reshape(num_heads, head_size)
    else:
        return np.ones((num_heads, head_size), np.float32)
    return _rotated(magnitudes, node.rotary) if isinstance(node, Rope) else magnitudes


def _outputs(linear: Linear, values_of: ValuesOf) -> FloatArray:
    """Of inputs that know nothing of each other and are about 1 before the weights of a norm."""
    rows = values_of(linear.weight)
    if isinstance(linear.x, RmsNorm):
        rows = rows * values_of(linear.x.weight)
    squares = np.einsum("nk,nk->n", rows, rows)
    if linear.bias is not None:
        squares = squares + values_of(linear.bias) ** 2
    magnitudes: FloatArray = np.sqrt(squares)
    return magnitudes


def _rotated(magnitudes: FloatArray, rotary: Rotary) -> FloatArray:
    """Root mean squares over the positions of a typical context, in which some pairs turn often and some hardly."""
    half = len(rotary.inverse_frequencies)
    turns = np.array(rotary.inverse_frequencies) * TYPICAL_CONTEXT_TOKENS / np.pi
    cos_squares = (1 + np.sinc(2 * turns)) / 2
    first, second = magnitudes[:, :half] ** 2, magnitudes[:, half : 2 * half] ** 2
    pairs = np.concatenate(
        (
            first * cos_squares + second * (1 - cos_squares),
            second * cos_squares + first * (1 - cos_squares),
        ),
        axis=1,
    )
    return np.concatenate((rotary.magnitude * np.sqrt(pairs), magnitudes[:, 2 * half :]), axis=1)


def _root_mean_square(x: FloatArray, axis: int) -> FloatArray:
    roots: FloatArray = np.sqrt((x**2).mean(axis=axis))
    return roots


def _at_least_a_share(magnitudes: FloatArray) -> FloatArray:
    """Channels that are nearly always 0 are not to count as less, nor heads of zeros as nothing."""
    largest = magnitudes.max(axis=1, keepdims=True)
    return np.where(largest > 0, np.maximum(magnitudes, SMALLEST_SHARE * largest), 1)
