"""The same products by oneDNN, through torch, weights packed once: bf16, and int8 with a scale for each channel."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.products import Shape

Peer = Callable[[int], float]  # rows -> seconds of one product


def bf16_products(shape: Shape, count: int, max_rows: int) -> Peer:
    """Products of bf16 activations with `count` different bf16 matrices, to bf16."""
    pack, multiply = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
    weights = [_random(shape).to(torch.bfloat16) for _ in range(count)]
    packed = [pack(weight, max_rows) for weight in weights]
    x = torch.zeros(max_rows, shape.num_columns, dtype=torch.bfloat16)

    def seconds(rows: int) -> float:
        inputs = x[:rows]
        began = time.perf_counter()
        for weight in packed:
            multiply(inputs, weight, None, "none", [], "")
        return (time.perf_counter() - began) / count

    return seconds


def int8_products(shape: Shape, count: int, max_rows: int) -> Peer:
    """Products of uint8 activations, one scale a tensor, with int8 matrices, one scale a channel, to fp32."""
    pack, multiply = torch.ops.onednn.qlinear_prepack, torch.ops.onednn.qlinear_pointwise
    weights = [(_random(shape) * 127).to(torch.int8) for _ in range(count)]
    packed = [pack(weight, [max_rows, shape.num_columns]) for weight in weights]
    scales, zeros = torch.full((shape.num_rows,), 0.01), torch.zeros(shape.num_rows, dtype=torch.int32)
    x = torch.full((max_rows, shape.num_columns), 128, dtype=torch.uint8)

    def seconds(rows: int) -> float:
        inputs = x[:rows]
        began = time.perf_counter()
        for weight in packed:
            multiply(inputs, 0.02, 128, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        return (time.perf_counter() - began) / count

    return seconds


def _random(shape: Shape) -> torch.Tensor:
    return torch.rand(shape.num_rows, shape.num_columns) - 0.5
