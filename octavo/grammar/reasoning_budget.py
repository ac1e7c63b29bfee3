"""A bound on how long an answer may reason: then its reasoning is ended for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """`max_tokens` of reasoning; then the tokens `ending` are put in, which spell `end_marker`.

    `begun`: the prompt has opened the reasoning. If not, it begins where the answer says `start_marker`, which must be
    its first text.
    """

    max_tokens: int
    ending: tuple[int, ...]
    start_marker: bytes
    end_marker: bytes
    begun: bool
    token_bytes: Callable[[int], bytes]

    def start(self) -> ReasoningCount:
        return ReasoningCount(self)


class ReasoningCount:
    """Counts the tokens of one answer's reasoning. Markers count as reasoning."""

    __slots__ = ("_begun", "_budget", "_ended", "_num_tokens", "_tail")

    def __init__(self, budget: ReasoningBudget) -> None:
        self._budget = budget
        self._begun = budget.begun
        self._ended = False
        self._num_tokens = 0
        self._tail = b""

    @property
    def ending(self) -> tuple[int, ...]:
        return self._budget.ending

    @property
    def spent(self) -> bool:
        """Whether the reasoning goes on and must not."""
        return self._begun and not self._ended and self._num_tokens >= self._budget.max_tokens

    def accept(self, token_id: int) -> None:
        if self._ended:
            return
        self._num_tokens += 1
        self._tail += self._budget.token_bytes(token_id)
        if not self._begun:
            self._look_for_start()
        elif self._budget.end_marker in self._tail:
            self._ended = True
        else:
            self._tail = self._tail[-len(self._budget.end_marker) :]

    def _look_for_start(self) -> None:
        text, marker = self._tail.lstrip(), self._budget.start_marker
        if text.startswith(marker):
            self._begun = True
        elif not marker.startswith(text):
            self._ended = True  # an answer that does not reason
