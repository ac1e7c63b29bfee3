"""What may come next in an answer: the contract between the loop and whatever restricts an answer's tokens."""

from __future__ import annotations

from typing import Any, Protocol


class Constraint(Protocol):
    """Follows one answer, token by token. Belongs to the engine thread."""

    def accept(self, token_id: int) -> None:
        """The answer goes on with this token. Raises `RequestError` if it may not."""

    def take_forced(self, limit: int) -> tuple[int, ...]:
        """At most `limit` tokens that must come next, whatever the model thinks; they count as accepted. Often none."""

    @property
    def ended(self) -> bool:
        """Whether the answer is complete, so that nothing may follow."""

    @property
    def matcher(self) -> Any:
        """What tells which tokens may come next, for `grammar/masks.py`; None while all may."""


class ConstraintSource(Protocol):
    """Makes the constraints of a request's answers. Immutable; requests and threads may share it."""

    def start(self) -> Constraint:
        """The constraint of an answer that has no tokens yet."""
