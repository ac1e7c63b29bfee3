"""The tracer: order of nodes, and a typed error for every description that contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from octavo.errors import ModelDefinitionError
from octavo.graph.ops import KvLayer, Logits, Ops, Rotary, SelectRows, Tensor, Weight
from octavo.graph.trace import trace

EMBEDDING = Weight("embedding", (11, 8))
NORM = Weight("norm", (8,))
SQUARE = Weight("square", (8, 8))
KV = KvLayer(0, num_kv_heads=1, head_size=4)
ROTARY = Rotary((1.0, 0.5))

Layer = Callable[[Ops, Tensor], Tensor]


def attend(ops: Ops, x: Tensor, kv: KvLayer = KV, sinks: Weight | None = None) -> Tensor:
    narrow = ops.linear(x, Weight("narrow", (4, 8)))
    q = ops.rope(x, ROTARY, num_heads=2)
    return ops.add(x, ops.attention(q, narrow, narrow, kv=kv, num_heads=2, scale=1.0, sinks=sinks))


@dataclass
class OneLayer:
    """A model whose single layer is given by the test."""

    run: Layer = attend
    weights: Sequence[Weight] = field(default=(EMBEDDING, NORM, Weight("narrow", (4, 8))))
    kv_layers: Sequence[KvLayer] = (KV,)
    num_layers: int = 1
    vocab_size: int = 11
    max_positions: int = 16

    def embed(self, ops: Ops) -> Tensor:
        return ops.embed(EMBEDDING)

    def layer(self, ops: Ops, index: int, x: Tensor) -> Tensor:
        return self.run(ops, x)

    def head(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.logits(ops.rms_norm(ops.select_rows(x), NORM, epsilon=1e-5), EMBEDDING)


def inputs_of(node: Tensor) -> list[Tensor]:
    return [value for name in node.__dataclass_fields__ if isinstance(value := getattr(node, name), Tensor)]


def test_nodes_come_after_what_they_read_and_logits_last() -> None:
    nodes = trace(OneLayer()).nodes
    kinds = [type(node).__name__ for node in nodes]
    assert kinds == ["Embed", "Linear", "Rope", "Attention", "Add", "SelectRows", "RmsNorm", "Logits"]
    for position, node in enumerate(nodes):
        assert all(nodes.index(x) < position for x in inputs_of(node))
    assert [node.columns for node in nodes] == [8, 4, 8, 8, 8, 8, 8, 11]


def test_each_trace_has_its_own_nodes() -> None:
    model = OneLayer()
    assert not set(trace(model).nodes) & set(trace(model).nodes)


SMALL = (EMBEDDING, NORM, SQUARE)
WRONG_LAYERS: dict[str, tuple[Layer, str]] = {
    "linear": (lambda ops, x: ops.linear(x, Weight("w", (8, 9))), "w takes 9 columns, its input has 8"),
    "bias": (lambda ops, x: ops.linear(x, SQUARE, Weight("b", (9,))), r"b has shape \(9,\)"),
    "norm": (lambda ops, x: ops.rms_norm(x, Weight("n", (4,)), epsilon=1.0), r"n has shape \(4,\), not \(8,\)"),
    "head norm": (
        lambda ops, x: ops.head_norm(x, Weight("n", (8,)), epsilon=1.0, num_heads=2),
        r"n has shape \(8,\), not \(4,\)",
    ),
    "matrix": (lambda ops, x: ops.linear(x, Weight("v", (8,))), "v is no matrix"),
    "add": (lambda ops, x: ops.add(x, ops.linear(x, Weight("narrow", (4, 8)))), "8 and 4 columns"),
    "gate": (lambda ops, x: ops.silu_mul(x, ops.linear(x, Weight("narrow", (4, 8)))), "8 and 4 columns"),
    "rope": (lambda ops, x: ops.rope(x, ROTARY, num_heads=4), "2 frequencies for heads of 2"),
    "heads": (lambda ops, x: ops.rope(x, ROTARY, num_heads=3), "8 columns, 3 heads"),
    "keys": (lambda ops, x: ops.attention(x, x, x, kv=KV, num_heads=2, scale=1.0), "keys and values have 8 and 8"),
    "query heads": (lambda ops, x: ops.attention(x, x, x, kv=KV, num_heads=1, scale=1.0), "not 4 wide"),
    "sinks": (lambda ops, x: attend(ops, x, sinks=Weight("v", (8,))), r"v has shape \(8,\), not \(2,\)"),
    "kv layer": (lambda ops, x: attend(ops, x, KvLayer(1, 1, 4)), "KV layer 1 is not declared"),
    "kv twice": (lambda ops, x: attend(ops, attend(ops, x)), "KV layer 0 is written twice"),
    "selected": (lambda ops, x: ops.add(x, ops.select_rows(x)), "selected rows meet all rows"),
    "selected twice": (lambda ops, x: ops.select_rows(x), "already selected"),
    "foreign": (lambda ops, x: ops.add(x, SelectRows(8, x)), "another trace"),
    "undeclared": (lambda ops, x: ops.linear(x, Weight("nowhere", (8, 8))), "weight nowhere is not declared"),
}


@pytest.mark.parametrize("case", WRONG_LAYERS)
def test_a_layer_that_does_not_fit_is_refused(case: str) -> None:
    run, message = WRONG_LAYERS[case]
    declared = [Weight("w", (8, 9)), Weight("b", (9,)), Weight("v", (8,)), Weight("narrow", (4, 8))]
    norm = Weight("n", (4,)) if case == "norm" else Weight("n", (8,))
    with pytest.raises(ModelDefinitionError, match=message):
        trace(OneLayer(run, weights=(*SMALL, *declared, norm)))


def test_what_is_declared_must_be_used() -> None:
    with pytest.raises(ModelDefinitionError, match="never used: spare"):
        trace(OneLayer(weights=(*OneLayer().weights, Weight("spare", (3,)))))
    with pytest.raises(ModelDefinitionError, match=r"KV layers declared but never used: \[1\]"):
        trace(OneLayer(kv_layers=(KV, KvLayer(1, 1, 4))))


class NoLogits(OneLayer):
    def head(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.rms_norm(x, NORM, epsilon=1e-5)


class UnselectedLogits(OneLayer):
    def head(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.logits(ops.rms_norm(x, NORM, epsilon=1e-5), EMBEDDING)


class WorkAfterLogits(OneLayer):
    def head(self, ops: Ops, x: Tensor) -> Tensor:
        logits = super().head(ops, x)
        ops.add(x, x)
        return logits


@pytest.mark.parametrize(
    ("model", "message"),
    [(NoLogits, "must return logits"), (UnselectedLogits, "select_rows must come first"), (WorkAfterLogits, "follows")],
)
def test_a_head_must_end_in_logits_of_selected_rows(model: type[OneLayer], message: str) -> None:
    with pytest.raises(ModelDefinitionError, match=message):
        trace(model())


def test_logits_are_typed() -> None:
    assert isinstance(trace(OneLayer()).logits, Logits)
