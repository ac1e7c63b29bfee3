"""Lowering: what is fused, where threads wait, which buffers are shared, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.backends.native import instructions as op
from octavo.backends.native.instructions import Buffer, BufferKind, Instruction, Operation, ProgramText
from octavo.backends.native.lower import lower
from octavo.backends.native.placement import insert_barriers, share_buffers
from octavo.errors import UnsupportedModelError
from octavo.graph import ops
from octavo.graph.ops import KvLayer, Rotary, Tensor, Weight
from octavo.graph.trace import Graph, trace
from octavo.models.llama import Llama
from octavo.quant.gguf import Layout
from tests.native.tiny import FAMILIES, LLAMA

KV = KvLayer(0, 1, 8)
ROTARY = Rotary((1.0, 0.5, 0.25, 0.125))
Op = TypeVar("Op", bound=Operation)


def layouts_of(weights: Sequence[Weight], **changes: Layout) -> Mapping[str, Layout]:
    """Everything in 4 bits, but for the weights whose name ends as given."""
    return {
        weight.name: next((layout for end, layout in changes.items() if weight.name.endswith(end)), Layout.GROUPED)
        for weight in weights
    }


def lowered(family: str, **changes: Layout) -> ProgramText:
    model = FAMILIES[family]()
    return lower(trace(model), layouts_of(model.weights, **changes))


def names(text: ProgramText) -> str:
    """Operations by name; "|" is a barrier."""
    return " ".join(
        type(instruction.operation).__name__ + (" |" if instruction.barrier else "")
        for instruction in text.instructions
    )


def kinds(text: ProgramText, *numbers: int | None) -> list[BufferKind]:
    return [text.buffers[number].kind for number in numbers if number is not None]


def of_type(text: ProgramText, kind: type[Op]) -> list[Op]:
    return [found.operation for found in text.instructions if isinstance(found.operation, kind)]


def test_a_llama_layer_is_fused_and_waits_only_where_it_must() -> None:
    first = "Embed | RmsNorm RotaryTable | Linear Linear Linear | RopeKv | Attention | Linear |"
    layer = "RmsNorm | Linear Linear Linear | RopeKv | Attention | Linear |"
    last = "RmsNorm | Linear Linear Linear | RopeKv | Attention | SelectRows SelectRows | Quantize | Linear |"
    feed_forward = "RmsNorm | GatedLinear | Linear |"
    end = "RmsNorm | Sample"
    layers = [first, feed_forward, *[layer, feed_forward] * (LLAMA.num_layers - 2), last, feed_forward]
    assert names(lowered("llama")) == " ".join([*layers, end])


def test_gemma_adds_its_second_norms_to_the_stream() -> None:
    text = lowered("gemma3")
    norms = of_type(text, op.RmsNorm)
    stream = of_type(text, op.Embed)[0].dst
    assert [norm.accumulate for norm in norms] == [False, True] * (2 * FAMILIES["gemma3"]().num_layers) + [False]
    selected = of_type(text, op.SelectRows)[1]
    assert selected.src == stream
    streams = [norm.dst for norm in norms if norm.accumulate]
    assert streams == [stream] * (len(streams) - 2) + [selected.dst] * 2
    assert not any(linear.accumulate for linear in of_type(text, op.Linear))
    assert all(rope.q_norm and rope.k_norm and rope.epsilon == 1e-6 for rope in of_type(text, op.RopeKv))


def test_residual_linears_add_to_the_stream_and_qkv_lie_side_by_side() -> None:
    text = lowered("qwen2")
    linears = of_type(text, op.Linear)[:4]
    qkv_columns = (LLAMA.num_heads + 2 * LLAMA.num_kv_heads) * LLAMA.head_size
    assert [(linear.dst_column, linear.num_columns) for linear in linears[:3]] == [(0, 192), (192, 64), (256, 64)]
    assert {linear.dst for linear in linears[:3]} == {of_type(text, op.RopeKv)[0].qkv}
    assert text.buffers[linears[0].dst].columns == qkv_columns
    assert all(linear.bias is not None for linear in linears[:3])
    assert linears[3].accumulate and linears[3].dst == of_type(text, op.Embed)[0].dst


def test_each_rotary_has_one_table() -> None:
    """Gemma has two rotary bases for many layers: two tables, filled once a step, alive to the last layer."""
    text = lowered("gemma3")
    tables = {table.dst: table.rotary for table in of_type(text, op.RotaryTable)}
    assert len(tables) == 2 and len(set(tables.values())) == 2
    assert [rope.rotary for rope in of_type(text, op.RopeKv)] == [*[min(tables)] * 2, max(tables), min(tables)]
    writes = [access for instruction in text.instructions for access in instruction.operation.writes()]
    assert sum(access.resource in {("buffer", table) for table in tables} for access in writes) == 2


def test_buffers_do_not_grow_with_layers() -> None:
    def num_buffers(num_layers: int) -> int:
        model = Llama(replace(LLAMA, num_layers=num_layers))
        return len(lower(trace(model), layouts_of(model.weights)).buffers)

    assert num_buffers(2) == num_buffers(9)


def test_only_what_norms_give_keeps_outliers_apart() -> None:
    """Queries, keys, values, gate, up and the head read normalised rows; outputs of attention and gates are plain."""
    text = lowered("llama")
    assert {kinds(text, norm.dst)[0] for norm in of_type(text, op.RmsNorm)} == {BufferKind.OPERAND_INT8_OUTLIERS}
    *attentions, before_selection = of_type(text, op.Attention)
    assert kinds(text, before_selection.dst) == [BufferKind.F32]
    plain = [*of_type(text, op.GatedLinear), *of_type(text, op.Quantize), *attentions]
    assert {kinds(text, operation.dst)[0] for operation in plain} == {BufferKind.OPERAND_INT8}
    assert kinds(text, *(sample.src for sample in of_type(text, op.Sample))) == [BufferKind.OPERAND_INT8_OUTLIERS]


def test_a_bf16_weight_beside_int8_ones_gets_an_operand_of_its_own() -> None:
    text = lowered("llama", **{"attention.v": Layout.BF16, "up": Layout.BF16})
    attention_norm, feed_forward_norm = of_type(text, op.RmsNorm)[:2]
    both = [BufferKind.OPERAND_BF16, BufferKind.OPERAND_INT8_OUTLIERS]
    assert kinds(text, attention_norm.dst, attention_norm.dst2) == both
    assert kinds(text, feed_forward_norm.dst, feed_forward_norm.dst2) == both
    q, k, v = of_type(text, op.Linear)[:3]
    assert q.src == k.src == attention_norm.dst2 and v.src == attention_norm.dst
    gate = of_type(text, op.GatedLinear)[0]
    assert (gate.src, gate.src_up) == (feed_forward_norm.dst2, feed_forward_norm.dst)


def test_the_gate_writes_what_the_down_projection_reads() -> None:
    for layout, kind in [(Layout.BF16, BufferKind.OPERAND_BF16), (Layout.GROUPED, BufferKind.OPERAND_INT8)]:
        text = lowered("llama", down=layout)
        assert all(kinds(text, gate.dst) == [kind] for gate in of_type(text, op.GatedLinear))


@pytest.mark.parametrize(("head_size", "kind"), [(32, BufferKind.OPERAND_INT8), (48, BufferKind.F32)])
def test_heads_write_an_operand_if_they_are_whole_groups_of_it(head_size: int, kind: BufferKind) -> None:
    model = Llama(replace(LLAMA, head_size=head_size))
    text = lower(trace(model), layouts_of(model.weights))
    assert kinds(text, of_type(text, op.Attention)[0].dst) == [kind]


def test_all_bf16_needs_no_int8_buffer() -> None:
    model = FAMILIES["gemma3"]()
    text = lower(trace(model), dict.fromkeys(layouts_of(model.weights), Layout.BF16))
    assert {buffer.kind for buffer in text.buffers} == {BufferKind.F32, BufferKind.OPERAND_BF16}


# ---- what is refused --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Convolution(Tensor):
    """An operation this backend has never heard of."""


class Draft:
    """Builds graphs node by node, without a model's good manners."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.x = self.add(ops.Embed(8, Weight("embedding", (9, 8))))

    def add(self, node: Tensor) -> Tensor:
        self.nodes.append(node)
        return node

    def norm(self, x: Tensor) -> Tensor:
        return self.add(ops.RmsNorm(8, x, Weight("norm", (8,)), 1e-6))

    def linear(self, x: Tensor, bias: Weight | None = None) -> Tensor:
        return self.add(ops.Linear(8, x, Weight("w", (8, 8)), bias))

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.add(ops.Attention(8, q, k, v, KV, 1, 1.0))

    def rope(self, x: Tensor, rotary: Rotary = ROTARY, num_heads: int = 1) -> Tensor:
        return self.add(ops.Rope(8, x, rotary, num_heads))


def convolution(draft: Draft) -> None:
    draft.add(Convolution(8))


def add_of_a_gate(draft: Draft) -> None:
    h = draft.norm(draft.x)
    gate = draft.add(ops.Gate(8, draft.linear(h), draft.linear(h), "silu"))
    draft.add(ops.Add(8, draft.x, gate))


def add_of_what_is_used_twice(draft: Draft) -> None:
    y = draft.linear(draft.x)
    draft.add(ops.Add(8, draft.x, y))
    draft.norm(y)


def stream_used_after_the_add(draft: Draft) -> None:
    draft.add(ops.Add(8, draft.x, draft.linear(draft.x)))
    draft.norm(draft.x)


def doubling(draft: Draft) -> None:
    draft.add(ops.Add(8, draft.x, draft.x))


def gate_with_a_bias(draft: Draft) -> None:
    h = draft.norm(draft.x)
    draft.add(ops.Gate(8, draft.linear(h, Weight("bias", (8,))), draft.linear(h), "silu"))


def rotated_stream(draft: Draft) -> None:
    draft.norm(draft.rope(draft.x))


def attention_without_linears(draft: Draft) -> None:
    h = draft.norm(draft.x)
    draft.attention(h, draft.linear(h), draft.linear(h))


def one_linear_for_keys_and_values(draft: Draft) -> None:
    shared = draft.linear(draft.x)
    draft.attention(draft.linear(draft.x), shared, shared)


def rotated_values(draft: Draft) -> None:
    q, k, v = (draft.rope(draft.linear(draft.x)) for _ in range(3))
    draft.attention(q, k, v)


def queries_and_keys_apart(draft: Draft) -> None:
    q, k = draft.rope(draft.linear(draft.x)), draft.rope(draft.linear(draft.x), Rotary((1.0,) * 4))
    draft.attention(q, k, draft.linear(draft.x))


def heads_that_do_not_match(draft: Draft) -> None:
    q, k = draft.rope(draft.linear(draft.x), num_heads=2), draft.rope(draft.linear(draft.x))
    draft.attention(q, k, draft.linear(draft.x))


@pytest.mark.parametrize(
    "build, message",
    [
        (convolution, "Convolution"),
        (add_of_a_gate, "Add here: a Gate"),
        (add_of_what_is_used_twice, "Add here: what is added must be used nowhere else"),
        (stream_used_after_the_add, "SelectRows here: its value is needed where it is not kept"),
        (doubling, "Add"),
        (gate_with_a_bias, "Gate here: its inputs must be linears without bias"),
        (rotated_stream, "Rope here: only queries and keys"),
        (attention_without_linears, "RmsNorm here: attention takes linears"),
        (one_linear_for_keys_and_values, "Linear here: attention takes linears"),
        (rotated_values, "Attention here: values can be neither"),
        (queries_and_keys_apart, "Attention here: queries and keys are rotated differently"),
        (heads_that_do_not_match, "Rope here: it has 2 heads"),
    ],
)
def test_graphs_without_a_native_program_are_refused_by_name(build: Callable[[Draft], None], message: str) -> None:
    draft = Draft()
    build(draft)
    layouts = {"embedding": Layout.GROUPED, "w": Layout.GROUPED}
    with pytest.raises(UnsupportedModelError, match=f"cannot run {message}"):
        lower(Graph(tuple(draft.nodes)), layouts)


# ---- placement, as properties of any straight-line program ---------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Buffer], list[Operation]]:
    """Operations that each read a value written before and write a new one, or add to one."""
    buffers = [Buffer(BufferKind.F32, 8)]
    operations: list[Operation] = [op.Embed(0, "w")]
    for _ in range(draw(st.integers(0, 14))):
        src = draw(st.integers(0, len(buffers) - 1))
        if draw(st.booleans()):
            buffers.append(Buffer(BufferKind.F32, draw(st.sampled_from([8, 16]))))
            operations.append(op.Linear(src, len(buffers) - 1, "w", 8))
        else:
            dst = draw(st.integers(0, len(buffers) - 1))
            first = draw(st.integers(0, 3))
            operations.append(op.Linear(src, dst, "w", 4, dst_column=first, accumulate=True))
    return buffers, operations


def values_written(operations: Sequence[Operation]) -> list[object]:
    """Runs the program on symbols: what each operation has written is a term over what it has read."""
    memory: dict[int, object] = {}
    written: list[object] = []
    for index, operation in enumerate(operations):
        if isinstance(operation, op.Linear):
            before = memory[operation.dst] if operation.accumulate else None
            memory[operation.dst] = (index, memory[operation.src], before)
            written.append(memory[operation.dst])
        elif isinstance(operation, op.Embed):
            memory[operation.dst] = index
    return written


@given(programs())
def test_sharing_buffers_changes_no_value(program: tuple[list[Buffer], list[Operation]]) -> None:
    buffers, operations = program
    shared, renumbered = share_buffers(buffers, operations)
    assert values_written(renumbered) == values_written(operations)
    assert len(shared) <= len(buffers)
    for before, after in zip(operations, renumbered, strict=True):
        shapes = [buffers[number] for number in _numbers(before)]
        assert [shared[number] for number in _numbers(after)] == shapes


def _numbers(operation: Operation) -> list[int]:
    return [access.resource[1] for access in (*operation.reads(), *operation.writes())]


@given(programs())
def test_a_barrier_stands_between_all_that_conflict(program: tuple[list[Buffer], list[Operation]]) -> None:
    instructions = insert_barriers(share_buffers(*program)[1])
    for later in range(len(instructions)):
        for earlier in range(later):
            if _depends(instructions[later].operation, instructions[earlier].operation):
                assert any(_barriers(instructions)[earlier:later])


def _depends(later: Operation, earlier: Operation) -> bool:
    """By columns, one by one."""
    read, written = _cells(later.reads()), _cells(later.writes())
    before_read, before_written = _cells(earlier.reads()), _cells(earlier.writes())
    return bool(read & before_written or written & before_written or written & before_read)


def _cells(accesses: Sequence[op.Access]) -> set[tuple[int, int]]:
    return {(a.resource[1], column) for a in accesses for column in range(a.first, min(a.last, 32))}


def _barriers(instructions: Sequence[Instruction]) -> list[bool]:
    return [instruction.barrier for instruction in instructions]
