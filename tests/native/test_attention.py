"""Paged attention against torch, and that a request's numbers depend on nothing but the request.

Keys and values go in as they come (no rope, no norms), so the oracle knows exactly what the pages hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch

from octavo.backends.native.instructions import Attention, Buffer, Linear, Quantize, RopeKv
from octavo.backends.native.library import Context, FloatArray, KvCache
from octavo.backends.native.lower import operand_kind
from octavo.config import BLOCK_TOKENS
from octavo.graph.ops import KvLayer
from octavo.quant.gguf import Layout
from octavo.weights.gguf import GGUFType
from tests.native.harness import F32, Chunk, Step, kv_cache, num_blocks_for, random_tensor, run
from tests.native.reference import attention

Dtype = Literal["bf16", "int8"]
DTYPES = pytest.mark.parametrize("dtype", ["bf16", "int8"])


@pytest.fixture
def contexts(isa: str) -> Iterator[list[Context]]:
    """Teams of one, two and three threads of one instruction set."""
    contexts = [Context(isa, threads) for threads in (1, 2, 3)]
    yield contexts
    for context in contexts:
        context.close()


@dataclass(frozen=True)
class Layer:
    """An attention layer, the pages it may use and a way to run one step of it."""

    num_heads: int
    kv: KvLayer
    scale: float
    softcap: float | None
    sinks: FloatArray | None
    dtype: Dtype
    cache: KvCache

    @classmethod
    def of(
        cls,
        heads: int,
        groups: int,
        head_size: int,
        *,
        window: int | None = None,
        softcap: float | None = None,
        sinks: FloatArray | None = None,
        dtype: Dtype = "bf16",
    ) -> Layer:
        kv = KvLayer(0, groups, head_size, window)
        return cls(heads, kv, head_size**-0.5, softcap, sinks, dtype, kv_cache([kv], 100, dtype))

    @property
    def qkv_columns(self) -> int:
        return (self.num_heads + 2 * self.kv.num_kv_heads) * self.kv.head_size

    def requests(self, rng: np.random.Generator, lengths: Sequence[int]) -> list[FloatArray]:
        """q, k and v of requests of these lengths. Scores reach about 15, so weights are far from even."""
        return [
            rng.standard_normal((length, self.qkv_columns)).astype(np.float32) * np.float32(2) for length in lengths
        ]

    def step(self, context: Context, chunks: Sequence[Chunk], qkv: Sequence[FloatArray]) -> list[FloatArray]:
        columns = self.num_heads * self.kv.head_size
        has_sinks = self.sinks is not None
        rows = np.concatenate(qkv) if qkv else np.zeros((0, self.qkv_columns), np.float32)
        found = run(
            context,
            [Buffer(F32, self.qkv_columns), Buffer(F32, columns)],
            [
                RopeKv(0, None, self.num_heads, self.kv),
                Attention(0, 1, self.num_heads, self.kv, self.scale, self.softcap, "sinks" if has_sinks else None),
            ],
            Step(chunks),
            inputs={0: rows},
            vectors={"sinks": self.sinks} if self.sinks is not None else {},
            kv=self.cache,
        ).buffers[1]
        return np.split(found, np.cumsum([len(part) for part in qkv])[:-1]) if qkv else []

    def expected(self, qkv: FloatArray, isa: str) -> npt.NDArray[np.float64]:
        head_size, groups = self.kv.head_size, self.kv.num_kv_heads
        x = torch.from_numpy(qkv).reshape(len(qkv), -1, head_size)
        unit = 1.0 if self.softcap is not None else math.log2(math.e)  # of the scores
        factor = np.float32(self.scale) * np.float32(unit)  # so that products round to the same bf16
        q = x[:, : self.num_heads] * float(factor)
        if isa == "avx512" and self.dtype == "bf16":  # multiplies bf16
            q = q.bfloat16()
        stored = x[:, self.num_heads :]
        k, v = (stored.bfloat16() if self.dtype == "bf16" else rounded_to_int8(stored)).tensor_split([groups], 1)
        sinks = torch.from_numpy(self.sinks).double() if self.sinks is not None else None
        out = attention(q.double(), k.double(), v.double(), 1 / unit, self.kv.window, self.softcap, sinks)
        found: npt.NDArray[np.float64] = out.reshape(len(qkv), -1).numpy()
        return found


def shuffled_blocks(rng: np.random.Generator, lengths: Sequence[int]) -> list[list[int]]:
    blocks = rng.permutation(100).tolist()
    return [[blocks.pop() for _ in range(num_blocks_for(length))] for length in lengths]


def rounded_to_int8(x_TGC: torch.Tensor) -> torch.Tensor:
    """With a scale for each token and head."""
    largest = x_TGC.abs().amax(-1, keepdim=True)
    return (x_TGC * (torch.tensor(127.0) / largest)).round() * (largest.double() / 127)


def tolerance(context: Context, dtype: Dtype = "bf16") -> float:
    """fp32 scores of up to 20 are off by 1e-5, so weights of values of up to 8 are; AVX-512 rounds weights to bf16.

    Beside keys and values in int8, queries and weights have 16 bits.
    """
    if dtype == "int8":
        return 1e-2
    return 3e-2 if context.isa == "avx512" else 8e-5


@DTYPES
@pytest.mark.parametrize("layout", [Layout.GROUPED, Layout.BF16])
def test_heads_may_write_the_operand_of_a_product(
    context: Context, dtype: Dtype, layout: Layout, rng: np.random.Generator
) -> None:
    """The same bits as an fp32 output rounded afterwards, also where threads share a request."""
    layer = Layer.of(6, 2, 64, dtype=dtype)
    lengths = [1, 3, 150, 700]
    chunks = [Chunk(n if n < 200 else 1, 0 if n < 200 else n - 1, blocks) for n, blocks in
              zip(lengths, shuffled_blocks(rng, lengths), strict=True)]  # fmt: skip
    rows = np.concatenate(layer.requests(rng, [chunk.num_tokens for chunk in chunks]))
    weight = random_tensor(rng, GGUFType.Q8_0, (40, 6 * 64)).pack(context, layout)
    operand = operand_kind(layout, outliers=False)
    buffers = [Buffer(F32, layer.qkv_columns), Buffer(F32, 6 * 64), Buffer(operand, 6 * 64), Buffer(F32, 40)]

    def product(dst: int, *between: Quantize) -> FloatArray:
        attention = Attention(0, dst, 6, layer.kv, layer.scale)
        text = [RopeKv(0, None, 6, layer.kv), attention, *between, Linear(2, 3, "w", 40)]
        return run(
            context, buffers, text, Step(chunks), inputs={0: rows}, weights={"w": weight}, kv=layer.cache
        ).buffers[3]  # fmt: skip

    np.testing.assert_array_equal(product(2), product(1, Quantize(1, 2)))


SHAPES = [
    pytest.param(9, 3, 64, None, None, id="smollm2"),
    pytest.param(14, 2, 64, None, None, id="qwen2"),
    pytest.param(4, 1, 256, 100, None, id="gemma3"),
    pytest.param(3, 3, 80, None, None, id="no-groups"),
    pytest.param(10, 2, 128, 33, 20.0, id="window-softcap"),
    pytest.param(6, 1, 96, 7, None, id="window-in-a-block"),
    pytest.param(2, 2, 32, 1, None, id="window-one"),
    pytest.param(12, 2, 16, None, 5.0, id="small-softcap"),
    pytest.param(60, 1, 18, None, None, id="more-rows-than-a-tile"),
    pytest.param(1, 1, 2, 250, None, id="tiny"),
]


@DTYPES
@pytest.mark.parametrize(("heads", "groups", "head_size", "window", "softcap"), SHAPES)
def test_prefill_is_attention(
    context: Context,
    dtype: Dtype,
    heads: int,
    groups: int,
    head_size: int,
    window: int | None,
    softcap: float | None,
    rng: np.random.Generator,
) -> None:
    layer = Layer.of(heads, groups, head_size, window=window, softcap=softcap, dtype=dtype)
    lengths = [1, 16, int(rng.integers(2, 60)), int(rng.integers(129, 200))]
    qkv = layer.requests(rng, lengths)
    chunks = [Chunk(n, 0, blocks) for n, blocks in zip(lengths, shuffled_blocks(rng, lengths), strict=True)]
    for found, rows in zip(layer.step(context, chunks, qkv), qkv, strict=True):
        np.testing.assert_allclose(found, layer.expected(rows, context.isa), atol=tolerance(context, dtype))


@DTYPES
@pytest.mark.parametrize(("heads", "groups", "head_size", "window", "softcap"), SHAPES)
def test_a_request_is_the_same_in_any_company(
    contexts: list[Context],
    dtype: Dtype,
    heads: int,
    groups: int,
    head_size: int,
    window: int | None,
    softcap: float | None,
    rng: np.random.Generator,
) -> None:
    """In chunks of any size, decoding or not, beside others, on any number of threads: the same bits."""
    layer = Layer.of(heads, groups, head_size, window=window, softcap=softcap, dtype=dtype)
    length = int(rng.integers(130, 180))
    (qkv,) = layer.requests(rng, [length])
    (blocks,) = shuffled_blocks(rng, [length])
    (whole,) = layer.step(contexts[0], [Chunk(length, 0, blocks)], [qkv])
    others = [block for block in range(100) if block not in blocks]
    for chunk_size in (1, 7, 16, 33, 64):
        start = max(0, length - 20) if chunk_size == 1 else 0
        for first in range(start, length, chunk_size):
            rows = qkv[first : first + chunk_size]
            chunks, parts = [Chunk(len(rows), first, blocks)], [rows]
            for count, position, first_block in ((1, 77, 0), (20, 0, 10), (9, 40, 20)):
                at = int(rng.integers(0, len(chunks) + 1))
                chunks.insert(at, Chunk(count, position, others[first_block : first_block + 10]))
                parts.insert(at, *layer.requests(rng, [count]))
            context = contexts[first // chunk_size % 3]
            found = layer.step(context, chunks, parts)[next(i for i, part in enumerate(parts) if part is rows)]
            np.testing.assert_array_equal(found, whole[first : first + chunk_size])


SINKS = [
    pytest.param(8, 2, 64, None, None, id="whole-context"),
    pytest.param(10, 1, 32, 40, None, id="window"),
    pytest.param(6, 3, 64, None, 15.0, id="softcap"),
]


@DTYPES
@pytest.mark.parametrize(("heads", "groups", "head_size", "window", "softcap"), SINKS)
def test_sinks_take_part_in_the_softmax(
    contexts: list[Context],
    dtype: Dtype,
    heads: int,
    groups: int,
    head_size: int,
    window: int | None,
    softcap: float | None,
    rng: np.random.Generator,
) -> None:
    """Sinks far below and above the scores too: they change nothing, or leave nothing. The softcap is not for them."""
    sinks = rng.normal(0, 8, heads).astype(np.float32)
    sinks[:3] = (-200, 200, 3)
    layer = Layer.of(heads, groups, head_size, window=window, softcap=softcap, sinks=sinks, dtype=dtype)
    (qkv,) = layer.requests(rng, [300])
    (blocks,) = shuffled_blocks(rng, [300])
    (whole,) = layer.step(contexts[0], [Chunk(300, 0, blocks)], [qkv])
    np.testing.assert_allclose(whole, layer.expected(qkv, contexts[0].isa), atol=tolerance(contexts[0], dtype))
    for context in contexts:
        (last,) = layer.step(context, [Chunk(1, 299, blocks)], [qkv[-1:]])
        np.testing.assert_array_equal(last[0], whole[-1])


@DTYPES
@pytest.mark.parametrize(("heads", "groups", "window"), [(9, 3, None), (4, 1, 700), (5, 5, None)])
def test_threads_that_share_a_long_request_change_no_bit(
    isa: str, dtype: Dtype, heads: int, groups: int, window: int | None, rng: np.random.Generator
) -> None:
    """One or two long requests among many threads: their keys are cut, and the parts merged."""
    layer = Layer.of(heads, groups, 32, window=window, dtype=dtype)
    lengths = [1000, 300]
    qkv = layer.requests(rng, lengths)
    blocks = shuffled_blocks(rng, lengths)
    alone = Context(isa, 1)
    whole = layer.step(alone, [Chunk(n, 0, b) for n, b in zip(lengths, blocks, strict=True)], qkv)
    for num_threads in (2, 3, 5, 8):
        context = Context(isa, num_threads)
        for requests in ([0], [1, 0]):
            for num_tokens in (1, 3):
                chunks = [Chunk(num_tokens, lengths[r] - num_tokens, blocks[r]) for r in requests]
                found = layer.step(context, chunks, [qkv[r][-num_tokens:] for r in requests])
                for part, request in zip(found, requests, strict=True):
                    np.testing.assert_array_equal(part, whole[request][-num_tokens:])
        context.close()


def test_many_decodes_at_once(contexts: list[Context], rng: np.random.Generator) -> None:
    layer = Layer.of(9, 3, 64)
    lengths = rng.integers(1, 60, 20).tolist()
    qkv = layer.requests(rng, lengths)
    blocks = shuffled_blocks(rng, lengths)
    prompts = [Chunk(n - 1, 0, b) for n, b in zip(lengths, blocks, strict=True)]
    layer.step(contexts[0], prompts, [rows[:-1] for rows in qkv])
    decodes = [Chunk(1, n - 1, b) for n, b in zip(lengths, blocks, strict=True)]
    together = [layer.step(context, decodes, [rows[-1:] for rows in qkv]) for context in contexts]
    for request, rows in enumerate(qkv):
        np.testing.assert_allclose(
            together[0][request][0], layer.expected(rows, contexts[0].isa)[-1], atol=tolerance(contexts[0])
        )
        (alone,) = layer.step(contexts[0], [decodes[request]], [rows[-1:]])
        for found in together:
            np.testing.assert_array_equal(found[request], alone)


@DTYPES
@pytest.mark.parametrize("window", [None, 20])
def test_what_another_request_left_in_a_page_is_never_seen(
    context: Context, dtype: Dtype, window: int | None, rng: np.random.Generator
) -> None:
    """Not even NaN, which a product with zero does not hide."""
    layer = Layer.of(6, 2, 64, window=window, dtype=dtype)
    clean = Layer.of(6, 2, 64, window=window, dtype=dtype)
    layer.step(context, [Chunk(1600, 0, range(100))], [np.full((1600, layer.qkv_columns), np.nan, np.float32)])
    (qkv,) = layer.requests(rng, [45])
    (blocks,) = shuffled_blocks(rng, [45])
    for first, count in ((0, 19), (19, 13), (32, 1), (33, 1), (34, 11)):
        rows = qkv[first : first + count]
        (found,) = layer.step(context, [Chunk(count, first, blocks)], [rows])
        (want,) = clean.step(context, [Chunk(count, first, blocks)], [rows])
        np.testing.assert_array_equal(found, want)
        assert np.isfinite(found).all()


NOT_NUMBERS = b"\xff\xff\xff\xff"  # NaN in bf16, and as the fp32 scale of int8 codes


@DTYPES
@pytest.mark.parametrize("head_size", [2, 64, 80, 96, 128, 256])
def test_pages_behind_the_window_and_slots_not_yet_written_are_never_seen(
    context: Context, dtype: Dtype, head_size: int, rng: np.random.Generator
) -> None:
    """Contexts that end just before, at and just after the end of a block and of a key tile."""
    window = 17
    clean, dirty = (Layer.of(4, 2, head_size, window=window, dtype=dtype) for _ in range(2))
    garbage = NOT_NUMBERS * (len(dirty.cache.read_block(0, 0)) // 4)
    for block in range(100):
        dirty.cache.write_block(0, block, garbage)
    for length in (1, 15, 16, 17, 32, 33, 34, 127, 128, 129, 145):
        (qkv,) = clean.requests(rng, [length])
        (blocks,) = shuffled_blocks(rng, [length])
        for layer in (clean, dirty):
            layer.step(context, [Chunk(length - 1, 0, blocks)], [qkv[:-1]])
        for block in blocks[: max(0, length - window) // BLOCK_TOKENS]:
            dirty.cache.write_block(0, block, garbage)
        (want,), (found,) = (
            layer.step(context, [Chunk(1, length - 1, blocks)], [qkv[-1:]]) for layer in (clean, dirty)
        )
        np.testing.assert_array_equal(found, want)
        np.testing.assert_allclose(want[0], clean.expected(qkv, context.isa)[-1], atol=tolerance(context, dtype))
        for block in blocks:
            dirty.cache.write_block(0, block, garbage)


@DTYPES
def test_nan_of_one_request_stays_there(context: Context, dtype: Dtype, rng: np.random.Generator) -> None:
    layer = Layer.of(4, 2, 32, dtype=dtype)
    lengths = [20, 5, 30]
    qkv = layer.requests(rng, lengths)
    qkv[1][:] = np.nan
    chunks = [Chunk(n, 0, blocks) for n, blocks in zip(lengths, shuffled_blocks(rng, lengths), strict=True)]
    found = layer.step(context, chunks, qkv)
    assert np.isnan(found[1]).all()
    for request in (0, 2):
        np.testing.assert_allclose(
            found[request], layer.expected(qkv[request], context.isa), atol=tolerance(context, dtype)
        )


def test_large_scores_do_not_overflow(context: Context, rng: np.random.Generator) -> None:
    layer = Layer.of(2, 1, 64)
    (qkv,) = layer.requests(rng, [150])
    qkv[:, : 3 * 64] *= np.float32(1e4)
    (found,) = layer.step(context, [Chunk(150, 0, range(10))], [qkv])
    assert np.isfinite(found).all()


def test_no_tokens(context: Context) -> None:
    assert Layer.of(4, 2, 32).step(context, [], []) == []
