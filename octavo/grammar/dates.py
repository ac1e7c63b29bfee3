"""Dates and times that exist: the grammar library's own formats know the lengths of months, but not leap years, nor
that there is no year 0, and have a second 60 in every minute. Here leap seconds are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,9}})?{_ZONE}"
_PATTERNS = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}T{_TIME}$", "time": f"^{_TIME}$"}

# Keywords whose value is a schema, a list of schemas, or schemas by name.
_ONE = ("items", "additionalProperties")
_LIST = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def with_real_dates(schema: Any) -> Any:
    """The schema with its formats of dates and times as patterns, where a schema has no pattern of its own."""
    if not isinstance(schema, Mapping):
        return schema
    changed = {key: _inside(key, value) for key, value in schema.items()}
    pattern = _PATTERNS.get(schema["format"]) if isinstance(schema.get("format"), str) else None
    if pattern is None or "pattern" in schema:
        return changed
    del changed["format"]
    return {**changed, "pattern": pattern}


def _inside(keyword: str, value: Any) -> Any:
    if keyword in _NAMED and isinstance(value, Mapping):
        return {name: with_real_dates(schema) for name, schema in value.items()}
    if keyword in _LIST and isinstance(value, list):
        return [with_real_dates(schema) for schema in value]
    return with_real_dates(value) if keyword in _ONE else value
