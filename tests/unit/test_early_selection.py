"""Rows are selected as soon as the last keys and values are stored, and nothing but the order changes."""

from __future__ import annotations

from collections import Counter

from octavo.graph import ops
from octavo.graph.early_selection import inputs_of, select_rows_early
from octavo.graph.ops import KvLayer, Rotary, SelectRows, Tensor, Weight
from octavo.graph.trace import Graph

KV = KvLayer(0, num_kv_heads=1, head_size=8)
SQUARE, NORM, EMBEDDING = Weight("square", (8, 8)), Weight("norm", (8,)), Weight("embedding", (11, 8))


def attention_block(x: Tensor) -> list[Tensor]:
    """The nodes of x + linear(attention(linear(norm(x))))."""
    norm = ops.RmsNorm(8, x, NORM, 1e-5)
    linear = ops.Linear(8, norm, SQUARE)
    rope = ops.Rope(8, linear, Rotary((1.0,) * 4), 1)
    attention = ops.Attention(8, rope, rope, linear, KV, 1, 1.0)
    output = ops.Linear(8, attention, SQUARE)
    return [norm, linear, rope, attention, output, ops.Add(8, x, output)]


def feed_forward_block(x: Tensor) -> list[Tensor]:
    norm = ops.RmsNorm(8, x, NORM, 1e-5)
    gate, up = ops.Linear(8, norm, SQUARE), ops.Linear(8, norm, SQUARE)
    gated = ops.Gate(8, gate, up, "silu")
    down = ops.Linear(8, gated, SQUARE)
    return [norm, gate, up, gated, down, ops.Add(8, x, down)]


def head(x: Tensor) -> list[Tensor]:
    selected = ops.SelectRows(8, x)
    norm = ops.RmsNorm(8, selected, NORM, 1e-5)
    return [selected, norm, ops.Logits(11, norm, EMBEDDING)]


def graph_of(*blocks: str) -> Graph:
    nodes: list[Tensor] = [ops.Embed(8, EMBEDDING)]
    for block in blocks:
        nodes += attention_block(nodes[-1]) if block == "attention" else feed_forward_block(nodes[-1])
    return Graph((*nodes, *head(nodes[-1])))


def kinds(graph: Graph) -> Counter[str]:
    return Counter(type(node).__name__ for node in graph.nodes if not isinstance(node, SelectRows))


def selected_inputs(graph: Graph) -> list[str]:
    return [type(node.x).__name__ for node in graph.nodes if isinstance(node, SelectRows)]


def check_order_and_rows(graph: Graph) -> None:
    """Inputs come before what reads them, and no operation mixes selected rows with all."""
    selected: dict[Tensor, bool] = {}
    for node in graph.nodes:
        of_inputs = {selected[x] for x in inputs_of(node).values()}
        assert len(of_inputs) <= 1
        assert not (isinstance(node, SelectRows) and True in of_inputs)
        selected[node] = isinstance(node, SelectRows) or of_inputs == {True}
    assert selected[graph.logits]


def test_only_the_residual_and_the_last_attention_are_selected() -> None:
    before = graph_of("attention", "feed forward", "attention", "feed forward")
    after = select_rows_early(before)
    check_order_and_rows(after)
    assert kinds(after) == kinds(before)
    assert selected_inputs(after) == ["Attention", "Add"]
    last = max(index for index, node in enumerate(after.nodes) if isinstance(node, ops.Attention))
    assert isinstance(after.nodes[last + 1], SelectRows)


def test_without_attention_rows_are_selected_first_of_all() -> None:
    for blocks in ((), ("feed forward", "feed forward")):
        after = select_rows_early(graph_of(*blocks))
        check_order_and_rows(after)
        assert selected_inputs(after) == ["Embed"]


def test_a_tensor_that_is_selected_twice_is_selected_once() -> None:
    x = ops.Embed(8, EMBEDDING)
    first, second = SelectRows(8, x), SelectRows(8, x)
    total = ops.Add(8, first, second)
    after = select_rows_early(Graph((x, first, second, total, ops.Logits(11, total, EMBEDDING))))
    check_order_and_rows(after)
    assert selected_inputs(after) == ["Embed"]


def test_a_graph_whose_rows_are_selected_early_stays_as_it_is() -> None:
    once = select_rows_early(graph_of("attention", "feed forward"))
    again = select_rows_early(once)
    assert [type(node) for node in again.nodes] == [type(node) for node in once.nodes]
