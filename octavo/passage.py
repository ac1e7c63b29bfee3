"""The beginning of an answer's text: the contract between the loop and whatever tells how far it reaches."""

from __future__ import annotations

from typing import Protocol


class Passage(Protocol):
    """Follows the text of one answer. Belongs to the engine thread."""

    def append(self, text: str) -> int:
        """How many characters of `text`, from its beginning, belong to the passage."""


class PassageSource(Protocol):
    """Makes the passages of a request's answers. Immutable; requests and threads may share it."""

    def start(self) -> Passage:
        """The passage of an answer that has no text yet."""
