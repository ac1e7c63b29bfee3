"""Runs a few instructions through the real library, so that a kernel can be tested by what it computes.

A test names its buffers, puts fp32 values in, runs operations over one ragged step and reads fp32 buffers back:

    weight = random_tensor(rng, GGUFType.Q4_K, (96, 512))
    result = run(
        context,
        [Buffer(F32, 512), Buffer(OPERAND_INT8, 512), Buffer(F32, 96)],
        [Quantize(src=0, dst=1), Linear(src=1, dst=2, weight="w", num_columns=96)],
        Step([Chunk(num_tokens=7)]),
        inputs={0: x},
        weights={"w": weight.pack(context, Layout.GROUPED)},
    )
    result.buffers[2]  # [7, 96]

Operand buffers have no values of their own to look at: fill them with Quantize or a norm, read them through a Linear.
Every operation is followed by a barrier. Buffers not in `inputs` start as NaN, so a kernel that leaves an element
unwritten shows.

Operations that keep state between steps (RopeKv, Attention) share a `KvCache`: make one with `kv_cache`, and call `run`
once per step with the chunks' `block_ids`; `max_tokens` may differ from call to call. Sampling: give `Step` logit rows
and, if not greedy, one `Sampling` a logit row; `result.sampled` and `result.logits` ([rows, vocabulary], as they are
drawn from)
come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import gguf
import numpy as np
import numpy.typing as npt

from octavo.backends.native import abi
from octavo.backends.native.assemble import assemble
from octavo.backends.native.instructions import Buffer, BufferKind, Instruction, Operation, ProgramText, RowSpace
from octavo.backends.native.kv_layout import KvLayout
from octavo.backends.native.library import Context, FloatArray, KvCache, PackedWeight
from octavo.backends.native.step_arrays import SamplingArray, greedy_sampling
from octavo.config import BLOCK_TOKENS
from octavo.graph.ops import KvLayer
from octavo.quant.gguf import Layout
from octavo.weights.gguf import GGUFType

F32 = BufferKind.F32
OPERAND_INT8 = BufferKind.OPERAND_INT8
OPERAND_BF16 = BufferKind.OPERAND_BF16
OPERAND_INT8_OUTLIERS = BufferKind.OPERAND_INT8_OUTLIERS
LOGIT_ROWS = RowSpace.LOGITS

# Types the gguf package cannot quantise to: where their fp16 scales lie, and how large a value is without them.
SCALES = {
    GGUFType.Q4_K: slice(0, 4),
    GGUFType.Q5_K: slice(0, 4),
    GGUFType.Q6_K: slice(208, 210),
    GGUFType.IQ4_NL: slice(0, 2),
    GGUFType.IQ4_XS: slice(0, 2),
}
LARGEST = {GGUFType.Q6_K: 32 * 64, GGUFType.IQ4_NL: 127, GGUFType.IQ4_XS: 127 * 32}


@dataclass(frozen=True)
class Chunk:
    """What one request computes in a step: `num_tokens` tokens from `first_position` on, its pages in `block_ids`."""

    num_tokens: int
    first_position: int = 0
    block_ids: Sequence[int] = ()


@dataclass(frozen=True)
class Sampling:
    """How one logit row is sampled; `biases` are added to the logits of token ids. With `token_ids`, which penalties
    need, their number must be `position`."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0
    biases: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    scored_token: int = -1
    num_logprobs: int = -1
    token_ids: Sequence[int] = ()
    num_prompt_tokens: int = 0
    mask: npt.NDArray[np.uint32] | None = None


class Step:
    """One ragged step: its arrays, the C structure over them, and room for what comes out.

    With `num_logits` (the vocabulary) the logits are kept.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        token_ids: Sequence[int] | None = None,
        logit_rows: Sequence[int] = (),
        sampling: Sequence[Sampling] | None = None,
        num_logits: int | None = None,
    ) -> None:
        sampling = sampling if sampling is not None else [Sampling()] * len(logit_rows)
        counts = [chunk.num_tokens for chunk in chunks]
        self.num_tokens = sum(counts)
        self.num_logit_rows = len(logit_rows)
        positions = [chunk.first_position + i for chunk in chunks for i in range(chunk.num_tokens)]
        self.arrays: dict[str, npt.NDArray[np.generic]] = {
            "token_ids": np.array(token_ids if token_ids is not None else [0] * self.num_tokens, np.int32),
            "positions": np.array(positions, np.int32),
            "query_starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            "block_tables": _block_tables(chunks),
            "table_rows": np.arange(len(chunks), dtype=np.int32),
            "logit_rows": np.array(logit_rows, np.int32),
            "sampling": _sampling(sampling),
            "bias_token_ids": np.array([token for s in sampling for token in s.biases], np.int32),
            "bias_values": np.array([value for s in sampling for value in s.biases.values()], np.float32),
            "sampled_token_ids": np.full(self.num_logit_rows, -1, np.int32),
            "logprobs": np.full(self.num_logit_rows, np.nan, np.float32),
            "ranks": np.full(self.num_logit_rows, -1, np.int32),
            "top_token_ids": np.full(sum(max(s.num_logprobs, 0) for s in sampling), -2, np.int32),
            "top_logprobs": np.full(sum(max(s.num_logprobs, 0) for s in sampling), np.nan, np.float32),
        }
        self._keep = [np.asarray(s.token_ids, np.int32) for s in sampling]
        for index, (one, tokens) in enumerate(zip(sampling, self._keep, strict=True)):
            self.arrays["sampling"]["token_ids"][index] = tokens.ctypes.data
            if one.mask is not None:
                self.arrays["sampling"]["mask"][index] = one.mask.ctypes.data
        if num_logits is not None:
            self.arrays["logits"] = np.full((self.num_logit_rows, num_logits), np.nan, np.float32)
        self.num_requests = len(chunks)

    def struct(self) -> abi.Step:
        step = _StepStruct(
            num_tokens=self.num_tokens,
            num_requests=self.num_requests,
            num_logit_rows=self.num_logit_rows,
            num_table_rows=self.num_requests,
            max_blocks=self.arrays["block_tables"].shape[1],
            num_biases=len(self.arrays["bias_token_ids"]),
            num_top_logprobs=len(self.arrays["top_token_ids"]),
        )
        for name, array in self.arrays.items():
            setattr(step, name, array.ctypes.data)
        step.arrays = self.arrays
        return step


class _StepStruct(abi.Step):
    """Keeps the arrays it points to."""

    arrays: Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Result:
    """`buffers[n]` is fp32 buffer n, only the rows of the step; `logits` is None unless the step asked for them."""

    buffers: Mapping[int, FloatArray]
    sampled: npt.NDArray[np.int32]
    logits: FloatArray | None
    logprobs: FloatArray
    ranks: npt.NDArray[np.int32]
    top_token_ids: npt.NDArray[np.int32]
    top_logprobs: FloatArray


def run(
    context: Context,
    buffers: Sequence[Buffer],
    operations: Sequence[Operation | Instruction],
    step: Step,
    *,
    inputs: Mapping[int, FloatArray] | None = None,
    weights: Mapping[str, PackedWeight] | None = None,
    vectors: Mapping[str, FloatArray] | None = None,
    kv: KvCache | None = None,
    max_tokens: int | None = None,
    max_logit_rows: int | None = None,
    key_divisors: Mapping[int, FloatArray] | None = None,
) -> Result:
    """Assemble `operations`, run them once, read every fp32 buffer."""
    instructions = tuple(op if isinstance(op, Instruction) else Instruction(op) for op in operations)
    program = assemble(
        ProgramText(tuple(buffers), instructions),
        context,
        kv,
        weights=weights or {},
        vectors=vectors or {},
        max_tokens=max_tokens or max(step.num_tokens, 1),
        max_logit_rows=max_logit_rows or max(step.num_logit_rows, 1),
        max_blocks=step.arrays["block_tables"].shape[1],
        key_divisors=key_divisors or {},
    )
    matrices = {n: program.buffer(n) for n, buffer in enumerate(buffers) if buffer.kind is F32}
    for number, matrix in matrices.items():
        matrix.fill(np.nan)
        if inputs is not None and number in inputs:
            matrix[: len(inputs[number])] = inputs[number]
    program.run(step.struct())
    rows = [step.num_logit_rows if buffer.row_space is LOGIT_ROWS else step.num_tokens for buffer in buffers]
    found = {number: matrix[: rows[number]].copy() for number, matrix in matrices.items()}
    program.close()
    logits = step.arrays.get("logits")
    return Result(
        found,
        step.arrays["sampled_token_ids"].astype(np.int32),
        logits.astype(np.float32) if logits is not None else None,
        step.arrays["logprobs"].astype(np.float32),
        step.arrays["ranks"].astype(np.int32),
        step.arrays["top_token_ids"].astype(np.int32),
        step.arrays["top_logprobs"].astype(np.float32),
    )


@dataclass(frozen=True)
class RandomTensor:
    """A tensor as a GGUF file would hold it, and its values as the `gguf` package decodes them."""

    encoding: GGUFType
    data: npt.NDArray[np.uint8]
    values: FloatArray

    def pack(self, context: Context, layout: Layout, row_order: npt.NDArray[np.int32] | None = None) -> PackedWeight:
        shape = (self.values.shape[0], self.values.shape[1])
        return PackedWeight(context, layout, self.encoding, shape, self.data, row_order)


def random_tensor(
    rng: np.random.Generator, encoding: GGUFType, shape: tuple[int, ...], scale: float = 1.0
) -> RandomTensor:
    """Normal values of standard deviation `scale`, quantised.

    Random codes of about that size for types that the `gguf` package only decodes.
    """
    kind = gguf.GGMLQuantizationType(encoding)
    if encoding in SCALES:
        data = _random_blocks(rng, encoding, shape, scale)
    else:
        data = gguf.quants.quantize(rng.normal(0.0, scale, shape).astype(np.float32), kind).view(np.uint8)
    values = gguf.quants.dequantize(data, kind).reshape(shape).astype(np.float32)
    return RandomTensor(encoding, data.reshape(-1), values)


def _random_blocks(
    rng: np.random.Generator, encoding: GGUFType, shape: tuple[int, ...], scale: float
) -> npt.NDArray[np.uint8]:
    """Random bytes but for the fp16 scales of each block, which are positive and such that values are about `scale`."""
    num_blocks = int(np.prod(shape)) // encoding.block_size
    blocks = rng.integers(0, 256, (num_blocks, encoding.block_bytes), dtype=np.uint8)
    where = SCALES[encoding]
    num_scales = (where.stop - where.start) // 2
    largest = LARGEST.get(encoding, 15 * 32)
    scales = rng.uniform(0.5, 1.5, (num_blocks, num_scales)) * scale * 2 / largest
    blocks[:, where] = scales.astype(np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def _sampling(sampling: Sequence[Sampling]) -> SamplingArray:
    entries = greedy_sampling(len(sampling))
    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position", "num_prompt_tokens", "num_logprobs",
                 "scored_token", "repetition_penalty", "frequency_penalty", "presence_penalty"):  # fmt: skip
        entries[name] = [getattr(one, name) for one in sampling]
    entries["num_biases"] = [len(one.biases) for one in sampling]
    entries["first_bias"] = np.cumsum(entries["num_biases"]) - entries["num_biases"]
    counts = np.maximum(entries["num_logprobs"], 0)
    entries["first_logprob"] = np.cumsum(counts) - counts
    return entries


def _block_tables(chunks: Sequence[Chunk]) -> npt.NDArray[np.int32]:
    """[requests, most blocks of any], the rest -1: nobody may read it."""
    width = max((len(chunk.block_ids) for chunk in chunks), default=0)
    tables = np.full((len(chunks), width), -1, np.int32)
    for row, chunk in enumerate(chunks):
        tables[row, : len(chunk.block_ids)] = chunk.block_ids
    return tables


def kv_cache(layers: Sequence[KvLayer], num_blocks: int, dtype: Literal["bf16", "int8"] = "bf16") -> KvCache:
    """A KV cache of these layers, with as many blocks in each of their groups."""
    layout = KvLayout(layers, dtype)
    return layout.cache([num_blocks] * len(layout.groups))


def num_blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)
