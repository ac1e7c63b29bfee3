"""Reasoning and answer told apart in a text that comes in pieces."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.marker_search import MarkerSearch
from octavo.reasoning.markers import ReasoningMarkers, ReasoningState


@dataclass(frozen=True, slots=True)
class SplitText:
    """A piece of text: what of it is reasoning, and what is the answer."""

    reasoning: str = ""
    content: str = ""


class ReasoningSplitter:
    """Splits one answer. Markers, and the white space around the reasoning, belong to neither part."""

    __slots__ = ("_begun", "_ended", "_held", "_markers", "_search", "_strips")

    def __init__(self, markers: ReasoningMarkers, state: ReasoningState) -> None:
        self._markers = markers
        self._begun = state.begun
        self._ended = not state.begun and not state.may_begin
        self._search = MarkerSearch(markers.end)
        self._held = ""  # white space that may turn out to end the reasoning, or what may become the start marker
        self._strips = True  # white space at the beginning of a part

    def append(self, text: str) -> SplitText:
        if self._ended:
            return SplitText(content=self._without_leading_space(text))
        if not self._begun:
            return self._look_for_start(text)
        before, after = self._search.append(text)
        reasoning = self._without_trailing_space(self._without_leading_space(before))
        if after is None:
            return SplitText(reasoning)
        self._ended, self._held, self._strips = True, "", True
        return SplitText(reasoning, self._without_leading_space(after))

    def flush(self) -> SplitText:
        """What was held back; nothing more will come."""
        held, self._held = self._held, ""
        if not self._ended and self._begun:
            rest = self._search.flush()
            return SplitText(reasoning=held + rest if rest.strip() else "")
        return SplitText(content=held)

    def _look_for_start(self, text: str) -> SplitText:
        self._held += text
        start, stripped = self._markers.start, self._held.lstrip()
        if stripped.startswith(start):
            self._begun, self._held = True, ""
            return self.append(stripped.removeprefix(start))
        if start.startswith(stripped):
            return SplitText()
        self._ended, self._strips = True, False
        content, self._held = self._held, ""
        return SplitText(content=content)

    def _without_leading_space(self, text: str) -> str:
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        return text

    def _without_trailing_space(self, text: str) -> str:
        """Holds back white space until other text follows it."""
        text = self._held + text
        kept = text.rstrip()
        self._held = text[len(kept) :]
        return kept
