"""How many tokens of an answer are reasoning."""

from __future__ import annotations

from collections.abc import Callable

from octavo.reasoning.markers import ReasoningMarkers, ReasoningState


class ReasoningCount:
    """Counts up to the end marker; markers count as reasoning. `token_bytes` is what a token spells."""

    __slots__ = ("_begun", "_end", "_ended", "_pending", "_start", "_tail", "_token_bytes", "num_tokens")

    def __init__(self, markers: ReasoningMarkers, state: ReasoningState, token_bytes: Callable[[int], bytes]) -> None:
        self._start, self._end = markers.start.encode(), markers.end.encode()
        self._begun = state.begun
        self._ended = not state.begun and not state.may_begin
        self._token_bytes = token_bytes
        self._tail = b""
        self._pending = 0  # tokens that are reasoning if they turn out to spell the start marker
        self.num_tokens = 0

    @property
    def running(self) -> bool:
        """Whether the answer is reasoning now."""
        return self._begun and not self._ended

    def accept(self, token_id: int) -> None:
        if self._ended:
            return
        self._tail += self._token_bytes(token_id)
        if not self._begun:
            self._look_for_start()
            return
        self.num_tokens += 1
        self._look_for_end()

    def _look_for_start(self) -> None:
        self._pending += 1
        text = self._tail.lstrip()
        if text.startswith(self._start):
            self._begun, self.num_tokens = True, self._pending
            self._tail = text.removeprefix(self._start)
            self._look_for_end()
        elif not self._start.startswith(text):
            self._ended = True

    def _look_for_end(self) -> None:
        self._ended = self._end in self._tail
        self._tail = self._tail[-len(self._end) :]
