"""The priority that a request may have under the policy that this engine runs."""

from __future__ import annotations

from octavo.config import PRIORITIES, SchedulingConfig
from octavo.errors import InvalidValueError, UnsupportedParameterError


def checked_priority(priority: int, scheduling: SchedulingConfig) -> int:
    """The priority. Raises a `RequestError` for one out of range, or, but for 0, that the policy would not look at."""
    if isinstance(priority, bool) or not isinstance(priority, int) or priority not in PRIORITIES:
        raise InvalidValueError(
            f"priority is {priority!r}; it must be an integer from {PRIORITIES[0]} to {PRIORITIES[-1]}",
            param="priority",
        )
    if priority and not scheduling.honours_priority:
        raise UnsupportedParameterError(
            f"priority is {priority}; the scheduling policy is {scheduling.policy}, which knows no priorities "
            "(priority and fair do: --scheduling-policy)",
            param="priority",
        )
    return priority
