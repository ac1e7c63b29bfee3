"""How far the reasoning reaches in a text that comes in pieces."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.reasoning.markers import ReasoningMarkers, ReasoningState


@dataclass(frozen=True, slots=True)
class ReasoningSpan:
    """Where the reasoning of a request's answers is."""

    markers: ReasoningMarkers
    state: ReasoningState

    def start(self) -> ReasoningPassage:
        return ReasoningPassage(self.markers, self.state)


class ReasoningPassage:
    """Measures one answer: its reasoning, the markers, and the white space before the answer proper."""

    __slots__ = ("_begun", "_end", "_ended", "_over", "_start", "_tail")

    def __init__(self, markers: ReasoningMarkers, state: ReasoningState) -> None:
        self._start, self._end = markers.start, markers.end
        self._begun = state.begun
        self._ended = False  # the end marker has come
        self._over = not state.begun and not state.may_begin
        self._tail = ""  # what may be the beginning of a marker

    def append(self, text: str) -> int:
        """How many characters of `text`, from its beginning, belong to the passage."""
        if self._over:
            return 0
        if self._ended:
            return self._measure_space(text)
        return self._look_for_end(text) if self._begun else self._look_for_start(text)

    def _look_for_start(self, text: str) -> int:
        self._tail += text
        head = self._tail.lstrip()
        if head.startswith(self._start):
            rest = head.removeprefix(self._start)
            self._begun, self._tail = True, ""
            return len(text) - len(rest) + self._look_for_end(rest)
        self._over = not self._start.startswith(head)
        return 0

    def _look_for_end(self, text: str) -> int:
        num_before = len(self._tail)
        self._tail += text
        before, found, rest = self._tail.partition(self._end)
        if found:
            self._ended, self._tail = True, ""
            return len(before) + len(found) - num_before + self._measure_space(rest)
        self._tail = self._tail[-(len(self._end) - 1) :]
        return len(text)

    def _measure_space(self, text: str) -> int:
        rest = text.lstrip()
        self._over = bool(rest)
        return len(text) - len(rest)
