"""Lowering: a traced model becomes instructions of the native library, fused where the library can.

A node of the graph is either computed where it stands or left to the node that uses it, which folds it into its own
instruction. What is folded:

    norm -> linears                      the norm writes the operand the linears read, no fp32 in between
    q, k, v linears -> attention         side by side into one buffer
    head norm, rope -> attention         one pass that also writes keys and values to their pages
    attention -> linear                  heads write the operand the linear reads
    gate and up linears -> gate          one product of two matrices, which writes the operand of the next linear
    linear, norm or moe -> add           added to the residual stream in place

Rows that need no logits are left out as soon as the last layer's keys and values are stored (`select_rows_early`).
`RULES` has one short function for each operation of the vocabulary. A graph that asks for more raises
`UnsupportedModelError` naming the operation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from octavo.backends.native import instructions
from octavo.backends.native.instructions import Buffer, BufferKind, Operation, ProgramText, RowSpace
from octavo.backends.native.placement import place
from octavo.errors import UnsupportedModelError
from octavo.graph import ops
from octavo.graph.early_selection import inputs_of, select_rows_early
from octavo.graph.trace import Graph
from octavo.quant.gguf import Layout

OPERAND_GROUP = 32  # columns of an operand that are rounded together


def operand_kind(layout: Layout, *, outliers: bool) -> BufferKind:
    """In which form a matrix in `layout` takes activations; `outliers`: those of integer codes keep outliers apart."""
    if layout is Layout.BF16:
        return BufferKind.OPERAND_BF16
    if layout is Layout.INT8_CHANNEL:
        return BufferKind.OPERAND_INT8_ROW
    return BufferKind.OPERAND_INT8_OUTLIERS if outliers else BufferKind.OPERAND_INT8


def lower(graph: Graph, layouts: Mapping[str, Layout]) -> ProgramText:
    """The program of `graph`; `layouts` has the layout of every matrix by the name of its weight.

    Raises `UnsupportedModelError` naming the operation that has no place in a native program.
    """
    graph = select_rows_early(graph)
    lowering = _Lowering(graph, layouts)
    for node in graph.nodes:
        rule = RULES.get(type(node))
        if rule is None:
            _refuse(node, "it is unknown here")
        rule(lowering, node)
    return place(lowering.buffers, lowering.operations)


class _Lowering:
    """The program so far, and where each node's value lies: in fp32, as an operand, or nowhere yet (folded)."""

    def __init__(self, graph: Graph, layouts: Mapping[str, Layout]) -> None:
        self.buffers: list[Buffer] = []
        self.operations: list[Operation] = []
        self.users: defaultdict[ops.Tensor, list[ops.Tensor]] = defaultdict(list)
        for node in graph.nodes:
            for source in inputs_of(node).values():
                self.users[source].append(node)
        self._layouts = layouts
        self._matrices: dict[ops.Tensor, int] = {}
        self._operands: dict[tuple[ops.Tensor, BufferKind], int] = {}
        self._rotary_tables: dict[ops.Rotary, int] = {}

    def new_buffer(self, kind: BufferKind, columns: int, row_space: RowSpace = RowSpace.TOKENS) -> int:
        self.buffers.append(Buffer(kind, columns, row_space))
        return len(self.buffers) - 1

    def emit(self, operation: Operation) -> None:
        self.operations.append(operation)

    def has_matrix(self, node: ops.Tensor) -> bool:
        return node in self._matrices

    def matrix(self, node: ops.Tensor) -> int:
        """The fp32 buffer of a node that has been computed."""
        if node not in self._matrices:
            _refuse(node, "its value is needed where it is not kept")
        return self._matrices[node]

    def row_space(self, node: ops.Tensor) -> RowSpace:
        return self.buffers[self.matrix(node)].row_space

    def keep(self, node: ops.Tensor, buffer: int) -> None:
        """`buffer` now holds the value of `node`."""
        kind = self.buffers[buffer].kind
        if kind is BufferKind.F32:
            self._matrices[node] = buffer
        else:
            self._operands[node, kind] = buffer

    def replace(self, old: ops.Tensor, new: ops.Tensor) -> int:
        """The fp32 buffer of `old`, from now on that of `new`; who still asks for `old` is refused."""
        self._matrices[new] = self.matrix(old)
        del self._matrices[old]
        return self._matrices[new]

    def operand(self, node: ops.Tensor, kind: BufferKind) -> int:
        """The value of `node` as the left side of a product, converted from fp32 the first time it is asked for."""
        if (node, kind) not in self._operands:
            src = self.matrix(node)
            dst = self.new_buffer(kind, node.columns, self.row_space(node))
            self.emit(instructions.Quantize(src, dst))
            self.keep(node, dst)
        return self._operands[node, kind]

    def operand_kind(self, user: ops.Linear | ops.Logits) -> BufferKind:
        """In which form `user` takes its activations.

        What a norm gives has outliers in a few columns, always about the same ones, which cause most of the error of
        rounding it: they are kept apart. See docs/decisions/0002.
        """
        return operand_kind(self._layouts[user.weight.name], outliers=_is_normalised(user.x))

    def kinds_needed(self, node: ops.Tensor) -> list[BufferKind]:
        """In which forms the users of `node` want it."""
        kinds = {
            self.operand_kind(user) if isinstance(user, ops.Linear | ops.Logits) else BufferKind.F32
            for user in self.users[node]
        }
        return sorted(kinds) or [BufferKind.F32]

    def kind_by_columns(self, node: ops.Tensor) -> BufferKind:
        """The form that all users of `node` want, if it can be written some columns at a time; else fp32."""
        kinds = self.kinds_needed(node)
        by_columns = (BufferKind.OPERAND_INT8, BufferKind.OPERAND_BF16)
        return kinds[0] if len(kinds) == 1 and kinds[0] in by_columns else BufferKind.F32

    def used_only_by(self, node: ops.Tensor, *kinds: type[ops.Tensor]) -> bool:
        users = self.users[node]
        return len(users) == 1 and isinstance(users[0], kinds)

    def added_only(self, node: ops.Tensor) -> bool:
        """Whether all that happens to `node` is being added to a residual stream."""
        users = self.users[node]
        if len(users) != 1 or not isinstance(users[0], ops.Add):
            return False
        return users[0].y is node and users[0].x is not node

    def rotary_table(self, rotary: ops.Rotary | None) -> int | None:
        """The buffer of cos and sin for `rotary`, filled once a step; None for none."""
        if rotary is None:
            return None
        if rotary not in self._rotary_tables:
            table = self.new_buffer(BufferKind.F32, 2 * len(rotary.inverse_frequencies))
            self.emit(instructions.RotaryTable(table, rotary))
            self._rotary_tables[rotary] = table
        return self._rotary_tables[rotary]

    def product(self, node: ops.Linear, dst: int, *, dst_column: int = 0, accumulate: bool = False) -> None:
        src = self.operand(node.x, self.operand_kind(node))
        bias = node.bias.name if node.bias is not None else None
        self.emit(instructions.Linear(src, dst, node.weight.name, node.columns, bias, dst_column, accumulate))


def _lower_embed(lowering: _Lowering, node: ops.Embed) -> None:
    dst = lowering.new_buffer(BufferKind.F32, node.columns)
    lowering.emit(instructions.Embed(dst, node.weight.name, node.scale))
    lowering.keep(node, dst)


def _is_normalised(node: ops.Tensor) -> bool:
    return isinstance(node, ops.RmsNorm) or (isinstance(node, ops.SelectRows) and _is_normalised(node.x))


def _lower_rms_norm(lowering: _Lowering, node: ops.RmsNorm) -> None:
    if lowering.added_only(node):
        return
    src = lowering.matrix(node.x)
    kinds = lowering.kinds_needed(node)
    if len(kinds) > 2:  # fp32, from which the others are made, and one operand
        kinds = sorted({BufferKind.F32, *kinds})[:2]
    dsts = [lowering.new_buffer(kind, node.columns, lowering.row_space(node.x)) for kind in kinds]
    dst, dst2 = dsts if len(dsts) == 2 else (dsts[0], None)
    lowering.emit(instructions.RmsNorm(src, dst, node.weight.name, node.epsilon, dst2))
    for buffer in dsts:
        lowering.keep(node, buffer)


def _lower_linear(lowering: _Lowering, node: ops.Linear) -> None:
    folded = lowering.used_only_by(node, ops.HeadNorm, ops.Rope, ops.Attention, ops.Gate)
    if not folded and not lowering.added_only(node):
        _compute_linear(lowering, node)


def _compute_linear(lowering: _Lowering, node: ops.Linear) -> int:
    src = lowering.operand(node.x, lowering.operand_kind(node))
    dst = lowering.new_buffer(BufferKind.F32, node.columns, lowering.buffers[src].row_space)
    lowering.product(node, dst)
    lowering.keep(node, dst)
    return dst


def _lower_head_norm(lowering: _Lowering, node: ops.HeadNorm) -> None:
    if not lowering.used_only_by(node, ops.Rope, ops.Attention):
        _refuse(node, "only queries and keys can be normalised by head")


def _lower_rope(lowering: _Lowering, node: ops.Rope) -> None:
    if not lowering.used_only_by(node, ops.Attention):
        _refuse(node, "only queries and keys can be rotated")


@dataclass(frozen=True, slots=True)
class _Heads:
    """What becomes of the queries or keys between their linear and the attention."""

    linear: ops.Linear
    norm: ops.HeadNorm | None
    rotary: ops.Rotary | None


def _heads(lowering: _Lowering, node: ops.Tensor, num_heads: int) -> _Heads:
    """Takes rope(head_norm(linear)) apart; rope and norm may be missing."""
    rope = node if isinstance(node, ops.Rope) else None
    inner = rope.x if rope is not None else node
    norm = inner if isinstance(inner, ops.HeadNorm) else None
    linear = norm.x if norm is not None else inner
    if not isinstance(linear, ops.Linear) or lowering.has_matrix(linear):
        _refuse(linear, "attention takes linears used nowhere else, normalised by head and rotated at most")
    for part in (rope, norm):
        if part is not None and part.num_heads != num_heads:
            _refuse(part, f"it has {part.num_heads} heads, but the attention {num_heads}")
    return _Heads(linear, norm, rope.rotary if rope is not None else None)


def _lower_attention(lowering: _Lowering, node: ops.Attention) -> None:
    kv = node.kv
    q = _heads(lowering, node.q, node.num_heads)
    k = _heads(lowering, node.k, kv.num_kv_heads)
    v = _heads(lowering, node.v, kv.num_kv_heads)
    if v.norm is not None or v.rotary is not None:
        _refuse(node, "values can be neither normalised nor rotated")
    if q.rotary != k.rotary:
        _refuse(node, "queries and keys are rotated differently")
    rotary = lowering.rotary_table(q.rotary)
    qkv = _compute_qkv(lowering, (q.linear, k.linear, v.linear))
    lowering.emit(
        instructions.RopeKv(
            qkv, rotary, node.num_heads, kv, _head_norm_epsilon(node, q.norm, k.norm), _norm_name(q), _norm_name(k)
        )
    )
    # No two heads may share a group of an operand.
    kind = lowering.kind_by_columns(node) if kv.head_size % OPERAND_GROUP == 0 else BufferKind.F32
    dst = lowering.new_buffer(kind, node.columns)
    sinks = node.sinks.name if node.sinks is not None else None
    lowering.emit(instructions.Attention(qkv, dst, node.num_heads, kv, node.scale, node.softcap, sinks))
    lowering.keep(node, dst)


def _compute_qkv(lowering: _Lowering, linears: Iterable[ops.Linear]) -> int:
    """One buffer with the outputs of all linears side by side."""
    linears = tuple(linears)
    qkv = lowering.new_buffer(BufferKind.F32, sum(linear.columns for linear in linears))
    for linear in linears:  # first all operands, then the products, which need no barrier between them
        lowering.operand(linear.x, lowering.operand_kind(linear))
    column = 0
    for linear in linears:
        lowering.product(linear, qkv, dst_column=column)
        column += linear.columns
    return qkv


def _head_norm_epsilon(node: ops.Attention, *norms: ops.HeadNorm | None) -> float:
    epsilons = {norm.epsilon for norm in norms if norm is not None}
    if len(epsilons) > 1:
        _refuse(node, "queries and keys are normalised with different epsilons")
    return epsilons.pop() if epsilons else 0.0


def _norm_name(heads: _Heads) -> str | None:
    return heads.norm.weight.name if heads.norm is not None else None


def _lower_gate(lowering: _Lowering, node: ops.Gate) -> None:
    gate, up = (_plain_linear(lowering, node, side) for side in (node.gate, node.up))
    src = lowering.operand(gate.x, lowering.operand_kind(gate))
    src_up = lowering.operand(up.x, lowering.operand_kind(up))
    dst = lowering.new_buffer(lowering.kind_by_columns(node), node.columns, lowering.buffers[src].row_space)
    lowering.emit(
        instructions.GatedLinear(
            src, dst, gate.weight.name, up.weight.name, node.activation, src_up if src_up != src else None
        )
    )
    lowering.keep(node, dst)


def _plain_linear(lowering: _Lowering, gate: ops.Gate, side: ops.Tensor) -> ops.Linear:
    if not isinstance(side, ops.Linear) or side.bias is not None or lowering.has_matrix(side):
        _refuse(gate, "its inputs must be linears without bias, used nowhere else")
    return side


def _lower_moe(lowering: _Lowering, node: ops.Moe) -> None:
    if lowering.added_only(node):
        return
    dst = lowering.new_buffer(BufferKind.F32, node.columns, lowering.row_space(node.x))
    _compute_moe(lowering, node, dst)
    lowering.keep(node, dst)


def _compute_moe(lowering: _Lowering, node: ops.Moe, dst: int, *, accumulate: bool = False) -> None:
    lowering.emit(
        instructions.Moe(
            lowering.matrix(node.x),
            dst,
            node.router.name,
            node.gate.name,
            node.up.name,
            node.down.name,
            num_experts=node.router.shape[0],
            num_active=node.num_active,
            renormalise=node.renormalise,
            activation=node.activation,
            accumulate=accumulate,
        )
    )


def _lower_add(lowering: _Lowering, node: ops.Add) -> None:
    if not lowering.added_only(node.y):
        _refuse(node, "what is added must be used nowhere else")
    if isinstance(node.y, ops.Linear):
        lowering.operand(node.y.x, lowering.operand_kind(node.y))
        lowering.product(node.y, lowering.replace(node.x, node), accumulate=True)
    elif isinstance(node.y, ops.RmsNorm):
        src = lowering.matrix(node.y.x)
        dst = lowering.replace(node.x, node)
        lowering.emit(instructions.RmsNorm(src, dst, node.y.weight.name, node.y.epsilon, accumulate=True))
    elif isinstance(node.y, ops.Moe):
        _compute_moe(lowering, node.y, lowering.replace(node.x, node), accumulate=True)
    else:
        _refuse(node, f"a {type(node.y).__name__} cannot be added to the residual stream")


def _lower_select_rows(lowering: _Lowering, node: ops.SelectRows) -> None:
    dst = lowering.new_buffer(BufferKind.F32, node.columns, RowSpace.LOGITS)
    lowering.emit(instructions.SelectRows(lowering.matrix(node.x), dst))
    lowering.keep(node, dst)


def _lower_logits(lowering: _Lowering, node: ops.Logits) -> None:
    src = lowering.operand(node.x, lowering.operand_kind(node))
    lowering.emit(instructions.Sample(src, node.weight.name, node.softcap))


RULES: Mapping[type[ops.Tensor], Callable[[_Lowering, Any], None]] = {
    ops.Embed: _lower_embed,
    ops.RmsNorm: _lower_rms_norm,
    ops.HeadNorm: _lower_head_norm,
    ops.Linear: _lower_linear,
    ops.Add: _lower_add,
    ops.Gate: _lower_gate,
    ops.Moe: _lower_moe,
    ops.Rope: _lower_rope,
    ops.Attention: _lower_attention,
    ops.SelectRows: _lower_select_rows,
    ops.Logits: _lower_logits,
}


def _refuse(node: ops.Tensor, reason: str) -> NoReturn:
    raise UnsupportedModelError(f"the native backend cannot run {type(node).__name__} here: {reason}")
