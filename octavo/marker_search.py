"""Finding a marker in a text that comes in pieces."""

from __future__ import annotations


class MarkerSearch:
    """Watches a growing text for the first `marker`; what could become one is held back."""

    __slots__ = ("_held", "_marker")

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._held = ""

    def append(self, text: str) -> tuple[str, str | None]:
        """The text that certainly comes before the marker, and, once it has come, what came after it (else None)."""
        text = self._held + text
        before, found, after = text.partition(self._marker)
        if found:
            self._held = ""
            return before, after
        held = begun_length(text, self._marker)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None

    def flush(self) -> str:
        """The text held back; nothing more will come."""
        held, self._held = self._held, ""
        return held


def begun_length(text: str, marker: str) -> int:
    """How many characters at the end of `text` begin a `marker` that is not complete."""
    longest = min(len(text), len(marker) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(marker[:length])), 0)
