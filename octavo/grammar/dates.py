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


def with_real_dates(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with its format of dates and times, if it has one and no pattern of its own, as a pattern."""
    pattern = _PATTERNS.get(schema["format"]) if isinstance(schema.get("format"), str) else None
    if pattern is None or "pattern" in schema:
        return schema
    return {**{keyword: value for keyword, value in schema.items() if keyword != "format"}, "pattern": pattern}
