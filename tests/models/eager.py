"""The operation vocabulary in torch, as plainly as possible: one request, no KV cache, float32; an oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from octavo.graph.ops import KvLayer, Model, Rotary, Weight


def eager_logits(model: Model, weights: Mapping[str, Tensor], token_ids: Sequence[int]) -> Tensor:
    """float32 [len(token_ids), vocab_size]: the logits after every position."""
    ops = Eager(weights, token_ids)
    x = model.embed(ops)
    for index in range(model.num_layers):
        x = model.layer(ops, index, x)
    return model.head(ops, x)


class Eager:
    """`Ops` with torch tensors; every position of the request is a row and every row gets logits."""

    def __init__(self, weights: Mapping[str, Tensor], token_ids: Sequence[int]) -> None:
        self.weights = weights
        self.token_ids = torch.tensor(token_ids)
        self.positions = torch.arange(len(token_ids), dtype=torch.float64)

    def embed(self, weight: Weight, *, scale: float = 1.0) -> Tensor:
        return scale * self._weight(weight)[self.token_ids]

    def rms_norm(self, x: Tensor, weight: Weight, *, epsilon: float) -> Tensor:
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * self._weight(weight)

    def head_norm(self, x: Tensor, weight: Weight, *, epsilon: float, num_heads: int) -> Tensor:
        return self.rms_norm(x.unflatten(-1, (num_heads, -1)), weight, epsilon=epsilon).flatten(-2)

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        y = x @ self._weight(weight).T
        return y if bias is None else y + self._weight(bias)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return torch.nn.functional.silu(gate) * up

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return torch.nn.functional.gelu(gate, approximate="tanh") * up

    def moe(
        self,
        x: Tensor,
        router: Weight,
        gate: Weight,
        up: Weight,
        down: Weight,
        *,
        num_active: int,
        renormalise: bool,
    ) -> Tensor:
        shares, chosen = torch.softmax(x @ self._weight(router).T, -1).topk(num_active)
        if renormalise:
            shares = shares / shares.sum(-1, keepdim=True)
        inner = torch.nn.functional.silu(torch.einsum("td,tkfd->tkf", x, self._weight(gate)[chosen]))
        inner = inner * torch.einsum("td,tkfd->tkf", x, self._weight(up)[chosen])
        return torch.einsum("tk,tkf,tkdf->td", shares, inner, self._weight(down)[chosen])

    def rope(self, x: Tensor, rotary: Rotary, *, num_heads: int) -> Tensor:
        angles = torch.outer(self.positions, torch.tensor(rotary.inverse_frequencies, dtype=torch.float64))
        cos, sin = (rotary.magnitude * f(angles).float()[:, None, :] for f in (torch.cos, torch.sin))
        first, second = x.unflatten(-1, (num_heads, -1)).chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        kv: KvLayer,
        num_heads: int,
        scale: float,
        softcap: float | None = None,
        sinks: Weight | None = None,
    ) -> Tensor:
        group = num_heads // kv.num_kv_heads
        q_HTC = q.unflatten(-1, (num_heads, -1)).transpose(0, 1)
        k_HTC, v_HTC = (
            y.unflatten(-1, (kv.num_kv_heads, -1)).transpose(0, 1).repeat_interleave(group, 0) for y in (k, v)
        )
        scores = scale * q_HTC @ k_HTC.transpose(1, 2)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        distance = self.positions[:, None] - self.positions[None, :]
        seen = (distance >= 0) & (distance < (kv.window or len(self.positions)))
        scores = scores.masked_fill(~seen, -torch.inf)
        if sinks is not None:
            sinks_HT1 = self.weights[sinks.name].to(scores)[:, None, None].expand(-1, len(self.positions), 1)
            scores = torch.cat((scores, sinks_HT1), dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., : len(self.positions)]
        return (weights @ v_HTC).transpose(0, 1).flatten(-2)

    def select_rows(self, x: Tensor) -> Tensor:
        return x

    def logits(self, x: Tensor, weight: Weight, *, softcap: float | None = None) -> Tensor:
        y = self.linear(x, weight)
        return y if softcap is None else softcap * torch.tanh(y / softcap)

    def _weight(self, weight: Weight) -> Tensor:
        found = self.weights[weight.name]
        assert tuple(found.shape) == weight.shape, weight.name
        return found
