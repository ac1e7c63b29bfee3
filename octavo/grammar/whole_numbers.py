"""Limits written as 2.0, which JSON Schema takes for the integer and the grammar library does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LIMITS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


def with_whole_limits(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with its limits as integers, as far as they are whole."""
    whole = {limit: int(schema[limit]) for limit in _LIMITS if _is_whole(schema.get(limit))}
    return {**schema, **whole} if whole else schema


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()
