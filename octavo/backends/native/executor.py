"""The native executor: a checkpoint packed and lowered once, then one foreign call a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

from octavo.backends.native.assemble import assemble
from octavo.backends.native.instructions import Instruction, ProgramText, expert_weight
from octavo.backends.native.key_divisors import key_divisors
from octavo.backends.native.kv_layout import KvLayout
from octavo.backends.native.library import (
    Context,
    FloatArray,
    KvCache,
    PackedWeight,
    ProfileArray,
    Program,
    dequantize,
    library_digest,
)
from octavo.backends.native.lower import lower
from octavo.backends.native.rows import Rows
from octavo.backends.native.step_arrays import StepArrays
from octavo.backends.native.step_results import step_output
from octavo.config import BLOCK_TOKENS, Quantization
from octavo.errors import EngineError, InvalidValueError
from octavo.graph.ops import Attention, Moe, Weight
from octavo.graph.trace import Graph, trace
from octavo.quant.gguf import Layout, layout_of
from octavo.step import KvGroup, StepOutput, StepPlan
from octavo.weights.checkpoint import Checkpoint, StoredTensor

Progress = Callable[[int, int], None]  # bytes of the file packed so far, and of all

SCORE_CHUNK_TOKENS = 64


class NativeExecutor:
    """Runs step plans of one model on this machine's processors.

    Making it packs every weight (the checkpoint may be closed afterwards); `allocate`, called once, makes the KV cache
    and the arena; from then on `execute` runs one plan a call. Not safe to call from two threads at once.

    Raises `ConfigError` (instruction set, threads) or `UnsupportedModelError` (tensor type, operation).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        isa: str | None,
        threads: int,
        activation_dtype: Literal["bf16", "int8"],
        quantization: Quantization | None = None,
        kv_cache_dtype: Literal["bf16", "int8"] = "bf16",
        progress: Progress | None = None,
    ) -> None:
        model = checkpoint.model
        self.vocab_size = model.vocab_size
        self._kv_layout = KvLayout(model.kv_layers, kv_cache_dtype)
        graph = trace(model)
        kept_as_vectors = _routers(graph)
        layouts = {
            name: layout_of(tensor.encoding, activation_dtype, quantization)
            for name, tensor in checkpoint.tensors.items()
            if len(tensor.shape) > 1 and name not in kept_as_vectors
        }
        self._text = lower(graph, layouts)
        self._key_divisors = _key_divisors(graph, checkpoint) if kv_cache_dtype == "int8" else {}
        self._context = Context(isa, threads)
        reader = _Reader(checkpoint, progress)
        self._vectors: dict[str, FloatArray] = {}
        self._weights: dict[str, PackedWeight] = {}
        for name, tensor in checkpoint.tensors.items():
            if name in layouts:
                self._weights |= _packed(self._context, layouts[name], tensor, reader.done)
            else:
                self._vectors[name] = _vector(tensor)
                reader.done(tensor.data)
        self._rows: Rows | None = None
        self._arrays: StepArrays | None = None
        self._program: Program | None = None
        self._kv: KvCache | None = None

    @property
    def isa(self) -> str:
        """The instruction set that was chosen."""
        return self._context.isa

    @property
    def threads(self) -> int:
        return self._context.threads

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed weights."""
        vectors = sum(vector.nbytes for vector in self._vectors.values())
        return vectors + sum(weight.bytes for weight in self._weights.values())

    @property
    def kv_groups(self) -> tuple[KvGroup, ...]:
        """The groups of layers of the KV cache: whole context first, then sliding windows."""
        return self._kv_layout.groups

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """What a step does, in order."""
        return self._text.instructions

    @property
    def weights(self) -> Mapping[str, PackedWeight]:
        """The packed matrices that instructions name."""
        return self._weights

    @property
    def build(self) -> str:
        """Names the build of the library: blocks that another one saved may mean something else."""
        return library_digest().hex()

    def allocate(
        self, num_blocks: Sequence[int], max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> None:
        """Makes the KV cache, with `num_blocks[n]` blocks for layer group n, the rows and the arena. Call it once."""
        if self._program is not None:
            raise EngineError("the executor has already been allocated")
        self._rows = Rows(max_num_seqs, max_model_len, len(self.kv_groups), self.vocab_size)
        self._arrays = StepArrays(
            max_tokens=max_num_batched_tokens,
            max_requests=max_num_seqs,
            block_tables=self._rows.block_tables,
            max_logit_rows=max_num_batched_tokens,
        )
        self._kv = self._kv_layout.cache(num_blocks)
        max_blocks = self._rows.block_tables.shape[2]
        self._program = self._assemble(self._text, self._kv, max_num_batched_tokens, max_num_batched_tokens, max_blocks)

    def execute(self, plan: StepPlan) -> StepOutput:
        """Runs the plan and gives the tokens it sampled and scored, in order.

        Raises `StepError` when the plan does not fit the rows; the rows of other requests are unharmed.
        """
        if self._program is None or self._rows is None or self._arrays is None:
            raise EngineError("the executor has not been allocated")
        for start in plan.starts:
            self._rows.start(start)
        saved = self._move_blocks(plan) if plan.saves or plan.loads else ()
        decoding = self._rows.decoding(plan, self._arrays)
        output = self._compute(plan) if decoding is None else decoding.run(self._program.run)
        return replace(output, saved=saved) if saved else output

    def _compute(self, plan: StepPlan) -> StepOutput:
        """A step that may be any."""
        assert self._program is not None and self._rows is not None and self._arrays is not None
        if not plan.decoding and not plan.steps and not plan.copies:
            return StepOutput()
        logit_rows = self._rows.gather(plan, self._arrays)
        self._program.run(self._arrays.struct)
        self._rows.append_sampled(logit_rows, self._arrays)
        return step_output(logit_rows, self._arrays)

    def start_profile(self) -> ProfileArray:
        """Times of each thread and each of `instructions`, in nanoseconds, that every step adds to from now on."""
        if self._program is None:
            raise EngineError("the executor has not been allocated")
        return self._program.start_profile()

    def prepare(self, num_bytes: int) -> int:
        """Takes at least `num_bytes` more of the KV cache's memory from the system, so that steps need not wait for it.

        Gives how many bytes that were, 0 when there is nothing left to take.
        """
        return self._kv.populate(num_bytes) if self._kv is not None else 0

    def _move_blocks(self, plan: StepPlan) -> tuple[bytes, ...]:
        """Reads the plan's saves, then writes its loads."""
        assert self._kv is not None
        saved = tuple([self._kv.read_block(address.group, address.block_id) for address in plan.saves])
        for load in plan.loads:
            self._kv.write_block(load.address.group, load.address.block_id, load.pages)
        return saved

    def score(self, token_ids: Sequence[int]) -> FloatArray:
        """Logits after every position of one prompt, [len, vocabulary]; nothing of it stays. For tests of accuracy."""
        num_tokens = len(token_ids)
        if num_tokens == 0:
            raise InvalidValueError("there are no tokens to score")
        num_blocks = -(-num_tokens // BLOCK_TOKENS)
        num_groups = len(self.kv_groups)
        kv = self._kv_layout.cache([num_blocks] * num_groups)
        program = self._assemble(self._text, kv, SCORE_CHUNK_TOKENS, SCORE_CHUNK_TOKENS, num_blocks)
        arrays = StepArrays(
            max_tokens=SCORE_CHUNK_TOKENS,
            max_requests=1,
            block_tables=np.tile(np.arange(num_blocks, dtype=np.int32), (num_groups, 1, 1)),
            max_logit_rows=SCORE_CHUNK_TOKENS,
        )
        logits: FloatArray = np.empty((num_tokens, self.vocab_size), np.float32)
        for first in range(0, num_tokens, SCORE_CHUNK_TOKENS):
            chunk = np.asarray(token_ids[first : first + SCORE_CHUNK_TOKENS], np.int32)
            _score_chunk(program, arrays, chunk, first, logits)
        program.close()
        kv.close()
        return logits

    def close(self) -> None:
        """Frees everything now rather than when collected."""
        if self._program is not None:
            self._program.close()
        if self._kv is not None:
            self._kv.close()
        for weight in self._weights.values():
            weight.close()
        self._context.close()

    def _assemble(
        self, text: ProgramText, kv: KvCache, max_tokens: int, max_logit_rows: int, max_blocks: int
    ) -> Program:
        return assemble(
            text,
            self._context,
            kv,
            weights=self._weights,
            vectors=self._vectors,
            max_tokens=max_tokens,
            max_logit_rows=max_logit_rows,
            max_blocks=max_blocks,
            key_divisors=self._key_divisors,
        )


class _Reader:
    """Lets go of what has been read of a checkpoint, and counts it."""

    def __init__(self, checkpoint: Checkpoint, progress: Progress | None) -> None:
        self._forget = checkpoint.forget
        self._progress = progress
        self._total = sum(tensor.data.nbytes for tensor in checkpoint.tensors.values())
        self._done = 0

    def done(self, part: npt.NDArray[np.uint8]) -> None:
        self._forget(part)
        self._done += part.nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _routers(graph: Graph) -> set[str]:
    """Names of the matrices that choose experts: small, and rounding them would choose others."""
    return {node.router.name for node in graph.nodes if isinstance(node, Moe)}


def _key_divisors(graph: Graph, checkpoint: Checkpoint) -> dict[int, FloatArray]:
    """Those of every layer of the KV cache, from the weights that make queries and keys."""

    def values_of(weight: Weight) -> FloatArray:
        tensor = checkpoint.tensors[weight.name]
        values = _values(tensor)
        checkpoint.forget(tensor.data)
        return values

    return {node.kv.index: key_divisors(node, values_of) for node in graph.nodes if isinstance(node, Attention)}


def _packed(
    context: Context, layout: Layout, tensor: StoredTensor, done: Callable[[npt.NDArray[np.uint8]], None]
) -> dict[str, PackedWeight]:
    """A matrix under its name, or those of all experts under theirs."""
    *experts, rows, columns = tensor.shape

    def pack(data: npt.NDArray[np.uint8], row_order: npt.NDArray[np.int32] | None) -> PackedWeight:
        return PackedWeight(context, layout, tensor.encoding, (rows, columns), data, row_order, done)

    if not experts:
        return {tensor.name: pack(tensor.data, tensor.row_order)}
    parts = tensor.data.reshape(*experts, -1)
    return {expert_weight(tensor.name, expert): pack(part, None) for expert, part in enumerate(parts)}


def _values(tensor: StoredTensor) -> FloatArray:
    """A tensor as fp32 in its shape, its rows in the order the model wants."""
    values = dequantize(tensor.encoding, tensor.data, prod(tensor.shape)).reshape(tensor.shape)
    return values if tensor.row_order is None else np.ascontiguousarray(values[tensor.row_order])


def _vector(tensor: StoredTensor) -> FloatArray:
    """A norm's weights, a bias or a router, flat."""
    return _values(tensor).ravel()


def _score_chunk(
    program: Program,
    arrays: StepArrays,
    token_ids: np.typing.NDArray[np.int32],
    first: int,
    logits: FloatArray,
) -> None:
    """Computes tokens first .. first + len(token_ids) and writes their logits to the same rows of `logits`."""
    count = len(token_ids)
    arrays.token_ids[:count] = token_ids
    arrays.positions[:count] = np.arange(first, first + count)
    arrays.query_starts[:] = (0, count)
    arrays.logit_rows[:count] = np.arange(count)
    arrays.set_counts(num_tokens=count, num_requests=1, num_logit_rows=count)
    arrays.struct.logits = logits[first:].ctypes.data
    program.run(arrays.struct)
