"""Rows that nobody samples need not be computed once the last keys and values are stored.

A model selects the rows that need logits after its last layer. Of most operations a row depends on no other row, so
that the selection may as well come before them: it moves up to where values are needed whole, which is what attention
reads and what it gives.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from octavo.graph.ops import Attention, Rope, SelectRows, Tensor
from octavo.graph.trace import Graph


def select_rows_early(graph: Graph) -> Graph:
    """The same logits, computed from rows that are selected as early as they can be. Selects nothing twice."""
    whole = _needed_whole(graph)
    nodes: list[Tensor] = []
    selected: dict[Tensor, Tensor] = {}

    def selected_rows(x: Tensor) -> Tensor:
        if x not in selected:
            selected[x] = SelectRows(x.columns, x)
            nodes.append(selected[x])
        return selected[x]

    for node in graph.nodes:
        if isinstance(node, SelectRows):
            selected[node] = selected_rows(node.x)
        elif node in whole or not inputs_of(node):
            nodes.append(node)
        else:
            inputs: dict[str, Any] = {name: selected_rows(x) for name, x in inputs_of(node).items()}
            new = replace(node, **inputs)
            selected[node] = new
            nodes.append(new)
    return Graph(tuple(nodes))


def inputs_of(node: Tensor) -> dict[str, Tensor]:
    """What an operation reads, by the name of its field."""
    values = {field.name: getattr(node, field.name) for field in fields(node)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _needed_whole(graph: Graph) -> set[Tensor]:
    """The tensors of which some row that is not selected has an effect."""
    whole: set[Tensor] = set()
    for node in reversed(graph.nodes):
        if isinstance(node, Attention | Rope):  # its rows depend on each other, or on where they stand
            whole.add(node)
        if node in whole:
            whole.update(inputs_of(node).values())
    return whole
