"""Tracing: a model's three functions, called once with symbolic tensors, become a flat list of operations.

The tracer checks every shape against the weights, so a backend that lowers a `Graph` may trust it. It knows no devices,
no weight formats and no batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from octavo.errors import ModelDefinitionError
from octavo.graph.ops import (
    Add,
    Attention,
    Embed,
    Gate,
    GatedActivation,
    HeadNorm,
    KvLayer,
    Linear,
    Logits,
    Model,
    Moe,
    RmsNorm,
    Rope,
    Rotary,
    SelectRows,
    Tensor,
    Weight,
)

Node = TypeVar("Node", bound=Tensor)


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced model. `nodes` are in execution order: inputs come before what reads them, `Logits` comes last."""

    nodes: tuple[Tensor, ...]

    @property
    def logits(self) -> Logits:
        last = self.nodes[-1]
        assert isinstance(last, Logits)
        return last


def trace(model: Model) -> Graph:
    """The model as a graph: `embed`, every layer in order, `head`.

    Raises `ModelDefinitionError` when shapes do not fit, when a weight or KV layer is used that the model does not
    declare, or when one is declared and not used.
    """
    tracer = Tracer(model.weights, model.kv_layers)
    x = model.embed(tracer)
    for index in range(model.num_layers):
        x = model.layer(tracer, index, x)
    return tracer.finish(model.head(tracer, x))


class Tracer:
    """`Ops` with symbolic tensors: each call checks its shapes and records one node."""

    def __init__(self, weights: Iterable[Weight], kv_layers: Iterable[KvLayer]) -> None:
        self._weights = {weight.name: weight for weight in weights}
        self._kv_layers = {kv.index: kv for kv in kv_layers}
        self._nodes: list[Tensor] = []
        self._recorded: set[Tensor] = set()
        self._selected: set[Tensor] = set()  # the tensors that have L rows; all others have T
        self._used_weights: set[str] = set()
        self._used_kv_layers: set[int] = set()

    def finish(self, output: Tensor) -> Graph:
        """The graph of everything recorded so far, whose last node is `output`."""
        if not isinstance(output, Logits):
            raise ModelDefinitionError(f"head() must return logits, not {type(output).__name__}")
        if self._nodes[-1] is not output:
            raise ModelDefinitionError("an operation follows the logits")
        unused = sorted(self._weights.keys() - self._used_weights)
        if unused:
            raise ModelDefinitionError(f"weights declared but never used: {', '.join(unused)}")
        silent = sorted(self._kv_layers.keys() - self._used_kv_layers)
        if silent:
            raise ModelDefinitionError(f"KV layers declared but never used: {silent}")
        return Graph(tuple(self._nodes))

    def embed(self, weight: Weight, *, scale: float = 1.0) -> Tensor:
        _, columns = self._matrix(weight, "embed")
        return self._record(Embed(columns, weight, scale))

    def rms_norm(self, x: Tensor, weight: Weight, *, epsilon: float) -> Tensor:
        self._vector(weight, x.columns, "rms_norm")
        return self._record(RmsNorm(x.columns, x, weight, epsilon), x)

    def head_norm(self, x: Tensor, weight: Weight, *, epsilon: float, num_heads: int) -> Tensor:
        self._vector(weight, _head_size(x, num_heads, "head_norm"), "head_norm")
        return self._record(HeadNorm(x.columns, x, weight, epsilon, num_heads), x)

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        outputs, inputs = self._matrix(weight, "linear")
        _require(inputs == x.columns, f"linear: {weight.name} takes {inputs} columns, its input has {x.columns}")
        if bias is not None:
            self._vector(bias, outputs, "linear")
        return self._record(Linear(outputs, x, weight, bias), x)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        _require(x.columns == y.columns, f"add: {x.columns} and {y.columns} columns")
        return self._record(Add(x.columns, x, y), x, y)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._gate(gate, up, "silu")

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._gate(gate, up, "gelu_tanh")

    def moe(
        self,
        x: Tensor,
        router: Weight,
        gate: Weight,
        up: Weight,
        down: Weight,
        *,
        num_active: int,
        renormalise: bool,
    ) -> Tensor:
        num_experts, inputs = self._matrix(router, "moe")
        _require(inputs == x.columns, f"moe: {router.name} takes {inputs} columns, its input has {x.columns}")
        _require(1 <= num_active <= num_experts, f"moe: {num_active} of {num_experts} experts")
        width = gate.shape[1] if len(gate.shape) == 3 else 0
        for weight, shape in ((gate, (width, inputs)), (up, (width, inputs)), (down, (inputs, width))):
            self._use(weight, "moe")
            _require(
                weight.shape == (num_experts, *shape),
                f"moe: {weight.name} has shape {weight.shape}, not {(num_experts, *shape)}",
            )
        return self._record(Moe(x.columns, x, router, gate, up, down, num_active, renormalise), x)

    def rope(self, x: Tensor, rotary: Rotary, *, num_heads: int) -> Tensor:
        pairs = len(rotary.inverse_frequencies)
        head_size = _head_size(x, num_heads, "rope")
        _require(head_size == 2 * pairs, f"rope: {pairs} frequencies for heads of {head_size} columns")
        return self._record(Rope(x.columns, x, rotary, num_heads), x)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        kv: KvLayer,
        num_heads: int,
        scale: float,
        softcap: float | None = None,
        sinks: Weight | None = None,
    ) -> Tensor:
        self._check_attention(q, k, v, kv, num_heads)
        if sinks is not None:
            self._vector(sinks, num_heads, "attention")
        return self._record(Attention(q.columns, q, k, v, kv, num_heads, scale, softcap, sinks), q, k, v)

    def select_rows(self, x: Tensor) -> Tensor:
        _require(x not in self._selected, "select_rows: the rows are already selected")
        selected = self._record(SelectRows(x.columns, x), x)
        self._selected.add(selected)
        return selected

    def logits(self, x: Tensor, weight: Weight, *, softcap: float | None = None) -> Tensor:
        outputs, inputs = self._matrix(weight, "logits")
        _require(inputs == x.columns, f"logits: {weight.name} takes {inputs} columns, its input has {x.columns}")
        _require(x in self._selected, "logits: select_rows must come first")
        return self._record(Logits(outputs, x, weight, softcap), x)

    def _record(self, node: Node, *inputs: Tensor) -> Node:
        operation = type(node).__name__
        for tensor in inputs:
            _require(tensor in self._recorded, f"{operation}: an input comes from another trace")
        num_selected = sum(tensor in self._selected for tensor in inputs)
        _require(num_selected in (0, len(inputs)), f"{operation}: selected rows meet all rows")
        if num_selected:
            self._selected.add(node)
        self._nodes.append(node)
        self._recorded.add(node)
        return node

    def _gate(self, gate: Tensor, up: Tensor, activation: GatedActivation) -> Tensor:
        _require(gate.columns == up.columns, f"gate: {gate.columns} and {up.columns} columns")
        return self._record(Gate(gate.columns, gate, up, activation), gate, up)

    def _check_attention(self, q: Tensor, k: Tensor, v: Tensor, kv: KvLayer, num_heads: int) -> None:
        _require(self._kv_layers.get(kv.index) == kv, f"attention: KV layer {kv.index} is not declared so")
        _require(kv.index not in self._used_kv_layers, f"attention: KV layer {kv.index} is written twice")
        _require(num_heads % kv.num_kv_heads == 0, f"attention: {num_heads} heads share {kv.num_kv_heads} KV heads")
        _require(
            _head_size(q, num_heads, "attention") == kv.head_size, f"attention: query heads are not {kv.head_size} wide"
        )
        kv_columns = kv.num_kv_heads * kv.head_size
        _require(
            k.columns == kv_columns == v.columns,
            f"attention: keys and values have {k.columns} and {v.columns} columns, the KV layer {kv_columns}",
        )
        self._used_kv_layers.add(kv.index)

    def _matrix(self, weight: Weight, operation: str) -> tuple[int, int]:
        self._use(weight, operation)
        _require(len(weight.shape) == 2, f"{operation}: {weight.name} is no matrix but {weight.shape}")
        return weight.shape[0], weight.shape[1]

    def _vector(self, weight: Weight, columns: int, operation: str) -> None:
        self._use(weight, operation)
        _require(weight.shape == (columns,), f"{operation}: {weight.name} has shape {weight.shape}, not ({columns},)")

    def _use(self, weight: Weight, operation: str) -> None:
        _require(self._weights.get(weight.name) == weight, f"{operation}: weight {weight.name} is not declared so")
        self._used_weights.add(weight.name)


def _head_size(x: Tensor, num_heads: int, operation: str) -> int:
    _require(num_heads > 0 and x.columns % num_heads == 0, f"{operation}: {x.columns} columns, {num_heads} heads")
    return x.columns // num_heads


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ModelDefinitionError(message)
