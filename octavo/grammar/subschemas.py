"""Where schemas lie in a JSON Schema, as far as the grammar library enforces them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# Keywords whose value is a schema, a list of schemas, or schemas by name.
_ONE = ("items", "additionalProperties")
_LIST = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")

Schema = Mapping[str, Any]


def changed(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """The schema after `change` has been made to all that lie in it, and then to itself."""
    if not isinstance(schema, Mapping):
        return schema
    return change({keyword: _inside(keyword, value, change) for keyword, value in schema.items()})


def _inside(keyword: str, value: Any, change: Callable[[Schema], Schema]) -> Any:
    if keyword in _NAMED and isinstance(value, Mapping):
        return {name: changed(schema, change) for name, schema in value.items()}
    if keyword in _LIST and isinstance(value, list):
        return [changed(schema, change) for schema in value]
    return changed(value, change) if keyword in _ONE else value
