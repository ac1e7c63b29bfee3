"""From a program as values (`instructions.py`) to the one the library runs: names and numbers become pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import singledispatchmethod
from types import MappingProxyType

import numpy as np

from octavo.backends.native import abi, instructions
from octavo.backends.native.library import Context, FloatArray, KvCache, PackedWeight, Program

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
NONE = -1  # "no buffer"


def assemble(
    text: instructions.ProgramText,
    context: Context,
    kv: KvCache | None,
    *,
    weights: Mapping[str, PackedWeight],
    vectors: Mapping[str, FloatArray],
    max_tokens: int,
    max_logit_rows: int,
    max_blocks: int = 0,
    key_divisors: Mapping[int, FloatArray] = MappingProxyType({}),
) -> Program:
    """The program of `text` with buffers for `max_tokens` and `max_logit_rows` rows.

    If it attends, then for requests of at most `max_blocks` blocks.

    `weights` and `vectors` (contiguous fp32) hold what the instructions name; the program keeps them alive.
    `key_divisors[n]`, [key/value heads, head size], are what the keys of layer n of the KV cache are stored divided by.
    Raises `EngineError` naming the instruction when an operand has the wrong kind, shape or number.
    """
    assembler = _Assembler(weights, vectors, key_divisors)
    buffers = (abi.Buffer * len(text.buffers))(
        *(abi.Buffer(buffer.kind, buffer.row_space, buffer.columns) for buffer in text.buffers)
    )
    assembled = (abi.Instruction * len(text.instructions))(
        *(assembler.instruction(instruction) for instruction in text.instructions)
    )
    return Program(
        context,
        kv,
        buffers,
        assembled,
        max_tokens=max_tokens,
        max_logit_rows=max_logit_rows,
        max_blocks=max_blocks,
        keep=assembler.kept,
    )


class _Assembler:
    """Translates one instruction at a time and collects what the translations point to."""

    def __init__(
        self,
        weights: Mapping[str, PackedWeight],
        vectors: Mapping[str, FloatArray],
        key_divisors: Mapping[int, FloatArray],
    ) -> None:
        self._weights = weights
        self._vectors = vectors
        self._key_divisors = key_divisors
        self.kept: list[object] = []

    def instruction(self, instruction: instructions.Instruction) -> abi.Instruction:
        name, operation = self._operation(instruction.operation)
        result = abi.Instruction(abi.OP_CODES[name], int(instruction.barrier))
        setattr(result.operation, name, operation)
        return result

    def _weight(self, name: str) -> int:
        weight = self._weights[name]
        self.kept.append(weight)
        return weight.handle

    def _experts(self, name: str, num_experts: int) -> int:
        handles = [self._weight(instructions.expert_weight(name, expert)) for expert in range(num_experts)]
        array = (ctypes.c_void_p * num_experts)(*handles)
        self.kept.append(array)
        return ctypes.addressof(array)

    def _vector(self, name: str | None) -> int | None:
        return None if name is None else self._array(self._vectors[name])

    def _array(self, array: FloatArray) -> int:
        contiguous = np.ascontiguousarray(array, np.float32)
        self.kept.append(contiguous)
        return contiguous.ctypes.data

    @singledispatchmethod
    def _operation(self, operation: instructions.Operation) -> tuple[str, object]:
        raise TypeError(f"no translation of {type(operation).__name__}")

    @_operation.register
    def _(self, op: instructions.Embed) -> tuple[str, object]:
        return "embed", abi.Embed(op.dst, op.scale, self._weight(op.weight))

    @_operation.register
    def _(self, op: instructions.RotaryTable) -> tuple[str, object]:
        frequencies = np.array(op.rotary.inverse_frequencies, np.float32)
        return "rotary_table", abi.RotaryTable(op.dst, len(frequencies), self._array(frequencies), op.rotary.magnitude)

    @_operation.register
    def _(self, op: instructions.RmsNorm) -> tuple[str, object]:
        return "rms_norm", abi.RmsNorm(
            op.src, op.dst, _number(op.dst2), int(op.accumulate), op.epsilon, self._vector(op.weight)
        )

    @_operation.register
    def _(self, op: instructions.Quantize) -> tuple[str, object]:
        return "quantize", abi.Quantize(op.src, op.dst)

    @_operation.register
    def _(self, op: instructions.Linear) -> tuple[str, object]:
        return "linear", abi.Linear(
            op.src, op.dst, op.dst_column, int(op.accumulate), self._weight(op.weight), self._vector(op.bias)
        )

    @_operation.register
    def _(self, op: instructions.GatedLinear) -> tuple[str, object]:
        gate, up = self._weight(op.gate), self._weight(op.up)
        return "gated_linear", abi.GatedLinear(op.src, _number(op.src_up), op.dst, ACTIVATIONS[op.activation], gate, up)

    @_operation.register
    def _(self, op: instructions.Moe) -> tuple[str, object]:
        gates, ups, downs = (self._experts(name, op.num_experts) for name in (op.gate, op.up, op.down))
        return "moe", abi.Moe(
            op.src,
            op.dst,
            int(op.accumulate),
            op.num_experts,
            op.num_active,
            int(op.renormalise),
            ACTIVATIONS[op.activation],
            self._vector(op.router),
            gates,
            ups,
            downs,
        )

    @_operation.register
    def _(self, op: instructions.RopeKv) -> tuple[str, object]:
        divisors = self._key_divisors.get(op.kv.index)
        return "rope_kv", abi.RopeKv(
            op.qkv,
            _number(op.rotary),
            op.num_heads,
            op.kv.num_kv_heads,
            op.kv.head_size,
            op.kv.index,
            op.epsilon,
            self._vector(op.q_norm),
            self._vector(op.k_norm),
            None if divisors is None else self._array(divisors),
        )

    @_operation.register
    def _(self, op: instructions.Attention) -> tuple[str, object]:
        return "attention", abi.Attention(
            op.qkv,
            op.dst,
            op.num_heads,
            op.kv.num_kv_heads,
            op.kv.head_size,
            op.kv.index,
            op.scale,
            op.softcap or 0.0,
            self._vector(op.sinks),
        )

    @_operation.register
    def _(self, op: instructions.SelectRows) -> tuple[str, object]:
        return "select_rows", abi.SelectRows(op.src, op.dst)

    @_operation.register
    def _(self, op: instructions.Sample) -> tuple[str, object]:
        return "sample", abi.Sample(op.src, self._weight(op.weight), op.softcap or 0.0)


def _number(buffer: int | None) -> int:
    return NONE if buffer is None else buffer
