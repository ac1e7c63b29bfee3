"""How a long transfer tells its caller where it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then while `what` is under way; `total_bytes` is None while nobody knows it."""

    def __call__(self, done_bytes: int, total_bytes: int | None, what: str) -> None: ...


def ignore_progress(done_bytes: int, total_bytes: int | None, what: str) -> None:
    """For callers that do not want to know."""
