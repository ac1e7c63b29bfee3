"""Programs: wrong ones are refused by name, wrong steps are errors, right ones run in any shape of batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from octavo.backends.native import instructions as op
from octavo.backends.native.assemble import assemble
from octavo.backends.native.instructions import Buffer, Operation, ProgramText
from octavo.backends.native.library import Context, PackedWeight, Program
from octavo.errors import EngineError, StepError
from octavo.graph.ops import KvLayer, Rotary
from octavo.quant.gguf import Layout
from octavo.weights.gguf import GGUFType
from tests.native.harness import (
    F32,
    LOGIT_ROWS,
    OPERAND_BF16,
    OPERAND_INT8,
    OPERAND_INT8_OUTLIERS,
    Chunk,
    Sampling,
    Step,
    kv_cache,
    random_tensor,
    run,
)

KV = KvLayer(index=0, num_kv_heads=2, head_size=16)
BUFFERS = [
    Buffer(F32, 64),  # 0
    Buffer(OPERAND_INT8, 64),  # 1
    Buffer(OPERAND_BF16, 64),  # 2
    Buffer(F32, 128),  # 3: q, k and v of 4 + 2 + 2 heads of 16
    Buffer(F32, 64, LOGIT_ROWS),  # 4
    Buffer(OPERAND_INT8, 64, LOGIT_ROWS),  # 5
    Buffer(F32, 16),  # 6: a rotary table
    Buffer(OPERAND_INT8_OUTLIERS, 64),  # 7
]


@pytest.fixture
def small() -> Callable[..., Program]:
    """Assembles operations over BUFFERS with an int8 weight and a bf16 one of [64, 64]."""
    context = Context("scalar", 2)
    rng = np.random.default_rng()
    weights = {
        "u8": random_tensor(rng, GGUFType.Q5_0, (64, 64)).pack(context, Layout.GROUPED),
        "bf16": random_tensor(rng, GGUFType.BF16, (64, 64)).pack(context, Layout.BF16),
        "wide": random_tensor(rng, GGUFType.Q5_0, (96, 64)).pack(context, Layout.GROUPED),
    }

    def make(
        operations: Sequence[Operation], *, kv: bool = True, max_tokens: int = 8, max_logit_rows: int = 4
    ) -> Program:
        return assemble(
            ProgramText(tuple(BUFFERS), tuple(op.Instruction(operation) for operation in operations)),
            context,
            kv_cache([KV], 4) if kv else None,
            weights=weights,
            vectors={"ones": np.ones(64, np.float32)},
            max_tokens=max_tokens,
            max_logit_rows=max_logit_rows,
            max_blocks=4,
        )

    return make


FREQUENCIES = Rotary((1.0,) * 8)
WRONG: list[tuple[Operation, str]] = [
    (op.Embed(1, "u8"), r"\(embed\): dst \(buffer 1\) must be fp32, but is int8 operand"),
    (op.Embed(3, "u8"), r"dst \(buffer 3\) has 128 columns, but needs 64"),
    (op.Embed(4, "u8"), "must have one row a token"),
    (op.Embed(0, "u8", float("nan")), "scale is nan"),
    (op.RotaryTable(0, FREQUENCIES), r"dst \(buffer 0\) has 64 columns, but needs 16"),
    (op.RmsNorm(0, 9, "ones", 1e-6), "dst is buffer 9, but there are 8"),
    (op.RmsNorm(0, -1, "ones", 1e-6), "dst is buffer -1"),
    (op.RmsNorm(0, 4, "ones", 1e-6), r"dst \(buffer 4\) must have one row a token"),
    (op.RmsNorm(0, 1, "ones", 1e-6, accumulate=True), "accumulating needs an fp32 dst"),
    (op.RmsNorm(0, 0, "ones", 1e-6, accumulate=True), "same buffer"),
    (op.RmsNorm(0, 1, "ones", 1e-6, dst2=1), "both int8 operand"),
    (op.RmsNorm(0, 1, "ones", float("inf")), "epsilon is inf"),
    (op.Quantize(1, 2), r"src \(buffer 1\) must be fp32"),
    (op.Quantize(0, 4), r"dst \(buffer 4\) must be an operand"),
    (op.Linear(2, 0, "u8", 64), "must be an int8 operand for a weight in layout grouped, but is of kind bf16 operand"),
    (op.Linear(1, 0, "bf16", 64), "must be a bf16 operand for a weight in layout bf16"),
    (op.Linear(1, 0, "u8", 64, dst_column=1), "columns 1 to 65 do not lie in dst"),
    (op.Linear(1, 3, "wide", 96, dst_column=-1), "columns -1 to 95 do not lie in dst"),
    (op.GatedLinear(1, 0, "u8", "wide", "silu"), "gate has 64 rows and up 96"),
    (op.GatedLinear(1, 1, "u8", "u8", "silu"), "is also a source"),
    (op.GatedLinear(1, 0, "u8", "bf16", "silu"), "src_up"),
    (op.GatedLinear(1, 7, "u8", "u8", "silu"), "of kind int8 operand with outliers, which takes whole rows"),
    (op.RopeKv(3, 6, 3, KV), "3 heads cannot share 2"),
    (op.Attention(3, 1, 4, KV, 1.0), "heads of 16 are not whole groups of 32 columns"),
    (op.Attention(3, 7, 4, KV, 1.0), "of kind int8 operand with outliers, which takes whole rows"),
    (op.RopeKv(3, 6, 8, KV), r"qkv \(buffer 3\) has 128 columns, but needs 192"),
    (op.RopeKv(3, 0, 4, KV), r"rotary \(buffer 0\) has 64 columns, but heads have 16"),
    (op.RopeKv(3, 6, 4, KvLayer(1, 2, 16)), "kv_layer is 1, but the KV cache has 1"),
    (op.RopeKv(3, 6, 4, KvLayer(0, 4, 16)), "the KV cache has 2 of 16"),
    (op.Attention(3, 3, 4, KV, 1.0), "has 128 columns, but needs 64"),
    (op.Attention(3, 0, 4, KV, float("nan")), "scale is nan"),
    (op.Attention(3, 0, 4, KV, 1.0, softcap=-1.0), "softcap is -1"),
    (op.SelectRows(0, 0), "must have one row a logit row"),
    (op.Sample(1, "u8"), r"src \(buffer 1\) must have one row a logit row"),
]


@pytest.mark.parametrize("operation, message", WRONG, ids=[message[:40] for _, message in WRONG])
def test_wrong_instructions_are_refused_by_name(
    small: Callable[..., Program], operation: Operation, message: str
) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        small([op.Quantize(0, 1), operation])
    assert str(caught.value).startswith("instruction 1 (")


def test_programs_that_cannot_be_are_refused(small: Callable[..., Program]) -> None:
    with pytest.raises(EngineError, match="has no KV cache"):
        small([op.RopeKv(3, 6, 4, KV)], kv=False)
    with pytest.raises(EngineError, match="samples once"):
        small([op.Sample(5, "u8"), op.Sample(5, "u8")])
    with pytest.raises(EngineError, match="max_tokens is 0"):
        small([op.Quantize(0, 1)], max_tokens=0)


def test_a_weight_packed_for_another_instruction_set_is_refused(isa: str) -> None:
    """Each instruction set has its own layout: the numbers would be garbage."""
    tensor = random_tensor(np.random.default_rng(), GGUFType.Q5_0, (64, 64))
    weights = {"w": tensor.pack(Context("scalar"), Layout.GROUPED)}
    buffers = [Buffer(OPERAND_INT8, 64), Buffer(F32, 64)]
    if isa == "scalar":
        run(Context(isa), buffers, [op.Linear(0, 1, "w", 64)], Step([]), weights=weights)
        return
    with pytest.raises(EngineError, match=f"packed for scalar, but the program runs on {isa}"):
        run(Context(isa), buffers, [op.Linear(0, 1, "w", 64)], Step([]), weights=weights)


def full_step() -> Step:
    """Two requests, 3 and 2 tokens, which use blocks 0 to 2."""
    chunks = [Chunk(3, first_position=15, block_ids=(2, 0)), Chunk(2, block_ids=(1,))]
    return Step(chunks, token_ids=[1, 2, 3, 4, 5], logit_rows=[2, 4], sampling=[Sampling(), Sampling(biases={7: 1.0})])


def whole_program(small: Callable[..., Program]) -> Program:
    return small(
        [
            op.Embed(0, "u8"),
            op.RotaryTable(6, FREQUENCIES),
            op.Quantize(0, 1),
            op.Linear(1, 3, "u8", 64),
            op.Linear(1, 3, "u8", 64, dst_column=64),
            op.RopeKv(3, 6, 4, KV),
            op.Attention(3, 0, 4, KV, 0.25),
            op.SelectRows(0, 4),
            op.Quantize(4, 5),
            op.Sample(5, "wide"),
        ]
    )


CORRUPTIONS: list[tuple[str, int, float, str]] = [
    ("token_ids", 1, 64, r"token_ids\[1\] is 64; it must be from 0 to 63"),
    ("token_ids", 0, -1, r"token_ids\[0\] is -1"),
    ("positions", 3, -1, r"positions\[3\] is -1"),
    ("positions", 1, 15, r"positions\[1\] is 15; it must be from 16 to 16"),
    ("positions", 4, 3, r"positions\[4\] is 3"),
    ("query_starts", 0, 1, r"query_starts\[0\] is 1"),
    ("query_starts", 1, 6, r"query_starts\[1\] is 6"),
    ("query_starts", 2, 4, r"query_starts\[2\] is 4; it must be from 5 to 5"),
    ("block_tables", 0, 4, r"block_tables\[0\] is 4; it must be from 0 to 3"),
    ("block_tables", 1, -1, r"block_tables\[1\] is -1"),
    ("table_rows", 1, 2, r"table_rows\[1\] is 2; it must be from 0 to 1"),
    ("logit_rows", 1, 5, r"logit_rows\[1\] is 5"),
    ("logit_rows", 1, 2, r"logit_rows\[1\] is 2; it must be from 3 to 4"),
    ("sampling.temperature", 0, -1.0, r"sampling.temperature\[0\] is -1"),
    ("sampling.temperature", 1, float("nan"), r"sampling.temperature\[1\] is nan"),
    ("sampling.repetition_penalty", 1, 0, r"sampling.repetition_penalty\[1\] is 0"),
    ("sampling.first_bias", 1, 3, r"sampling.first_bias\[1\] is 3"),
    ("sampling.num_biases", 0, 2, r"sampling.num_biases\[0\] is 2; it must be from 0 to 1"),
    ("sampling.scored_token", 0, 96, r"sampling.scored_token\[0\] is 96"),
    ("sampling.num_logprobs", 1, 97, r"sampling.num_logprobs\[1\] is 97"),
    ("sampling.num_logprobs", 1, 1, r"sampling.first_logprob\[1\] is 0; it must be from 0 to -1"),
    ("sampling.position", 0, -1, r"sampling.position\[0\] is -1"),
    ("bias_token_ids", 0, 96, r"bias_token_ids\[0\] is 96; it must be from 0 to 95"),
]


@pytest.mark.parametrize("array, index, value, message", CORRUPTIONS, ids=[c[3][:24] for c in CORRUPTIONS])
def test_steps_out_of_range_are_errors_and_do_no_harm(
    small: Callable[..., Program], array: str, index: int, value: float, message: str
) -> None:
    program = whole_program(small)
    step = full_step()
    name, _, field = array.partition(".")
    (step.arrays[name][field] if field else step.arrays[name].reshape(-1))[index] = value
    with pytest.raises(StepError, match=message):
        program.run(step.struct())
    program.run(full_step().struct())


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("num_tokens", 9, "num_tokens is 9; it must be from 0 to 8"),
        ("num_tokens", -1, "num_tokens is -1"),
        ("num_logit_rows", 5, "num_logit_rows is 5; it must be from 0 to 4"),
        ("num_requests", 0, "tokens but no requests"),
        ("max_blocks", 0, r"positions\[2\] is 17"),
        ("num_table_rows", 1, r"table_rows\[1\] is 1; it must be from 0 to 0"),
        ("table_rows", None, "has no table_rows"),
        ("token_ids", None, "has no token_ids"),
        ("sampling", None, "has no sampling"),
    ],
)
def test_wrong_counts_and_missing_arrays_are_errors(
    small: Callable[..., Program], field: str, value: int | None, message: str
) -> None:
    step = full_step()
    struct = step.struct()
    setattr(struct, field, value)
    with pytest.raises(StepError, match=message):
        whole_program(small).run(struct)


def test_the_end_of_a_block_table_is_the_end_of_a_request(small: Callable[..., Program]) -> None:
    """Position 16 needs a second block."""
    program = whole_program(small)
    program.run(Step([Chunk(1, first_position=15, block_ids=(0,))]).struct())
    with pytest.raises(StepError, match=r"positions\[0\] is 16; it must be from 0 to 15"):
        program.run(Step([Chunk(1, first_position=16, block_ids=(0,))]).struct())


def test_empty_steps_and_empty_requests_are_legal(small: Callable[..., Program]) -> None:
    program = whole_program(small)
    program.run(Step([]).struct())
    program.run(Step([Chunk(0), Chunk(2, block_ids=(1,)), Chunk(0)], logit_rows=[1]).struct())
    program.run(Step([Chunk(3, block_ids=(1,))]).struct())  # nobody samples


def test_select_rows_copies_the_rows_that_need_logits(context: Context) -> None:
    rng = np.random.default_rng()
    for num_tokens, columns in [(1, 1), (7, 33), (64, 576)]:
        x = rng.normal(size=(num_tokens, columns)).astype(np.float32)
        rows = np.sort(rng.choice(num_tokens, rng.integers(0, num_tokens + 1), replace=False))
        step = Step([Chunk(num_tokens)], logit_rows=rows.tolist())
        buffers = [Buffer(F32, columns), Buffer(F32, columns, LOGIT_ROWS)]
        result = run(context, buffers, [op.SelectRows(0, 1)], step, inputs={0: x})
        np.testing.assert_array_equal(result.buffers[1], x[rows])


def head(context: Context, num_logits: int) -> tuple[list[Buffer], list[Operation], dict[str, PackedWeight]]:
    """Logits of 64 columns: select all rows, quantise, sample."""
    tensor = random_tensor(np.random.default_rng(), GGUFType.Q5_0, (num_logits, 64))
    buffers = [Buffer(F32, 64), Buffer(F32, 64, LOGIT_ROWS), Buffer(OPERAND_INT8, 64, LOGIT_ROWS)]
    operations: list[Operation] = [op.SelectRows(0, 1), op.Quantize(1, 2), op.Sample(2, "head")]
    return buffers, operations, {"head": tensor.pack(context, Layout.GROUPED)}


@pytest.mark.parametrize("num_rows", [1, 31, 32, 33, 70])
def test_sampling_in_chunks_gives_every_row_its_own_logits(context: Context, num_rows: int) -> None:
    """The logits of one row at a time, the reference, never meet a chunk's edge."""
    rng = np.random.default_rng()
    num_logits = 301
    buffers, operations, weights = head(context, num_logits)
    x = rng.normal(size=(num_rows, 64)).astype(np.float32)
    step = Step([Chunk(num_rows)], logit_rows=range(num_rows), num_logits=num_logits)
    result = run(context, buffers, operations, step, inputs={0: x}, weights=weights)
    assert result.logits is not None
    np.testing.assert_array_equal(result.sampled, result.logits.argmax(-1))
    for row in range(num_rows):
        alone = Step([Chunk(1)], logit_rows=[0], num_logits=num_logits)
        single = run(context, buffers, operations, alone, inputs={0: x[row : row + 1]}, weights=weights)
        assert single.logits is not None
        np.testing.assert_array_equal(single.logits[0], result.logits[row])


def test_logits_come_out_after_biases(context: Context) -> None:
    rng = np.random.default_rng()
    buffers, operations, weights = head(context, 50)
    x = np.repeat(rng.normal(size=(1, 64)), 3, axis=0).astype(np.float32)
    sampling = [Sampling(), Sampling(biases={3: -np.inf, 11: 1e6}), Sampling(biases={0: 2.5})]
    step = Step([Chunk(3)], logit_rows=range(3), sampling=sampling, num_logits=50)
    result = run(context, buffers, operations, step, inputs={0: x}, weights=weights)
    assert result.logits is not None
    plain, forced, shifted = result.logits
    assert result.sampled[1] == 11 and forced[3] == -np.inf
    assert shifted[0] == plain[0] + np.float32(2.5)
    np.testing.assert_array_equal(shifted[1:], plain[1:])


def test_two_callers_of_one_context_take_turns(isa: str) -> None:
    """Their programs share the team; a step must never see half of another."""
    context = Context(isa, 2)
    rng = np.random.default_rng()
    buffers, operations, weights = head(context, 200)
    num_results: list[int] = []

    def call(seed: int) -> None:
        x = np.random.default_rng(seed).normal(size=(5, 64)).astype(np.float32)
        results = set()
        for _ in range(20):
            step = Step([Chunk(5)], logit_rows=range(5), num_logits=200)
            run(context, buffers, operations, step, inputs={0: x}, weights=weights)
            results.add(step.arrays["logits"].tobytes())
        num_results.append(len(results))

    callers = [threading.Thread(target=call, args=(int(rng.integers(1 << 30)),)) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert num_results == [1, 1, 1]


def test_buffers_that_are_not_fp32_cannot_be_looked_at(small: Callable[..., Program]) -> None:
    program = small([op.Quantize(0, 1)])
    assert program.buffer(0).shape == (8, 64)
    assert program.buffer(4).shape == (4, 64)
    with pytest.raises(EngineError, match="buffer 1 is not an fp32 buffer"):
        program.buffer(1)


def test_a_profile_has_the_time_of_every_instruction_on_every_thread(small: Callable[..., Program]) -> None:
    program = whole_program(small)
    times = program.start_profile()
    assert times.shape == (2, 10)
    program.run(full_step().struct())
    first = times.copy()
    assert (first["work_ns"] >= 0).all() and (first["work_ns"].sum(axis=1) > 0).all()
    assert (first["wait_ns"][:, :-1] > 0).all()
    program.run(full_step().struct())
    assert (times["work_ns"].sum() > first["work_ns"].sum()) and (times["wait_ns"] >= first["wait_ns"]).all()
    program.stop_profile()
    second = times.copy()
    program.run(full_step().struct())
    np.testing.assert_array_equal(times, second)
