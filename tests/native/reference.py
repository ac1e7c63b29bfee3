"""Torch references of the operations, in float64 and as short as their definition: the oracle of every backend.

Shapes: T tokens, H query heads, G key/value heads, C head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def rotary_table(positions: Sequence[int], inverse_frequencies: Sequence[float], magnitude: float = 1.0) -> Tensor:
    """[T, 2 * frequencies]: cosines, then sines. Frequencies are fp32, as a backend gets them."""
    frequencies = torch.tensor(inverse_frequencies, dtype=torch.float32).double()
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], -1) * magnitude


def rope(x_THC: Tensor, table: Tensor) -> Tensor:
    """Rotates the pairs (i, i + frequencies) of each head; what lies beyond them is kept."""
    count = table.shape[-1] // 2
    cos, sin = table[:, None, :count], table[:, None, count:]
    first, second, rest = x_THC[..., :count], x_THC[..., count : 2 * count], x_THC[..., 2 * count :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def attention(
    q_THC: Tensor,
    k_TGC: Tensor,
    v_TGC: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Of a whole request from position 0: [T, H, C]."""
    group = q_THC.shape[1] // k_TGC.shape[1]
    scores = torch.einsum("thc,shc->hts", q_THC, k_TGC.repeat_interleave(group, 1)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    positions = torch.arange(len(q_THC))
    distance = positions[:, None] - positions[None, :]
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks_H is not None:
        scores = torch.cat((scores, sinks_H[:, None, None].expand(-1, len(q_THC), 1)), -1)
    weights = scores.softmax(-1)[:, :, : len(k_TGC)]
    return torch.einsum("hts,shc->thc", weights, v_TGC.repeat_interleave(group, 1))


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 as its authors define it (Salmon et al., SC 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [high >> 32 ^ c[1] ^ k[0], high & 0xFFFFFFFF, low >> 32 ^ c[3] ^ k[1], low & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at `position` of a request with `seed`."""
    words = philox4x32([position & 0xFFFFFFFF, position >> 32, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])
    return float((words[1] << 32 | words[0]) >> 11) * 2.0**-53


def token_probabilities(logits_V: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """What vLLM samples from: temperature, min_p, top_k (ties with the k-th stay), top_p; NaN is never sampled."""
    scaled = logits_V.double().nan_to_num(nan=-torch.inf, neginf=-torch.inf) / temperature
    probabilities = scaled.softmax(-1)
    scaled = scaled.masked_fill(probabilities < min_p * probabilities.max(), -torch.inf)
    if 0 < top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[-1], -torch.inf)
    probabilities = scaled.softmax(-1)
    if top_p < 1:
        order = torch.argsort(-scaled, stable=True)
        before = probabilities[order].cumsum(0) - probabilities[order]
        probabilities[order[before >= top_p]] = 0
    return probabilities / probabilities.sum()
