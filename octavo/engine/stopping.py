"""Stop strings: defined on text, whatever the tokens or chunks it arrives in.

The automaton of Aho and Corasick reads each character once. Its state is the longest suffix of the text that begins a
stop string, so the depth of the state is exactly what has to be held back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class StopCheck:
    """`text` may be shown; `matched` is the stop string that ended the text, if one did."""

    text: str
    matched: str | None = None


@dataclass(slots=True, eq=False)
class _State:
    """A prefix of a stop string, `depth` characters long; `matched` is the longest stop string it ends with.

    `fallback` is the state of its longest proper suffix that is one; the root falls back to itself.
    """

    depth: int
    matched: str | None = None
    following: dict[str, _State] = field(default_factory=dict)
    fallback: _State = field(init=False)

    def __post_init__(self) -> None:
        self.fallback = self

    def step(self, char: str) -> _State:
        state = self
        while char not in state.following:
            if state.depth == 0:
                return state
            state = state.fallback
        return state.following[char]


class StopStrings:
    """Watches a text that grows by `append` for the first stop string in it.

    First is the one that is complete first; of those that end at the same character, the longest. The text ends right
    before it, or right after it with `include`, and nothing that comes later is released.
    """

    __slots__ = ("_held", "_include", "_matched", "_start", "_state")

    def __init__(self, stop: tuple[str, ...], include: bool) -> None:
        self._start = _root(stop) if stop else None
        self._state = self._start
        self._include = include
        self._held = ""
        self._matched: str | None = None

    def append(self, text: str) -> StopCheck:
        """What may be shown now that `text` has come, and the stop string it completed. Time is linear in `text`."""
        state = self._state
        if state is None:
            return StopCheck(text)
        if self._matched is not None:
            return StopCheck("", self._matched)
        for position, char in enumerate(text, 1):
            state = state.step(char)
            if state.matched is not None:
                return self._stop_at(self._held + text[:position], state.matched)
        self._state = state
        text = self._held + text
        certain = len(text) - state.depth
        self._held = text[certain:]
        return StopCheck(text[:certain])

    def flush(self) -> str:
        """The text held back; it will not become part of a stop string with what comes later."""
        held, self._held = self._held, ""
        self._state = self._start
        return held

    def _stop_at(self, text: str, matched: str) -> StopCheck:
        self._matched, self._held = matched, ""
        return StopCheck(text if self._include else text[: len(text) - len(matched)], matched)


@lru_cache(maxsize=64)
def _root(stop: tuple[str, ...]) -> _State:
    """The automaton of these stop strings; it is only read, so requests with the same ones share it."""
    root = _State(0)
    for string in stop:
        state = root
        for char in string:
            state = state.following.setdefault(char, _State(state.depth + 1))
        state.matched = string
    _link(root)
    return root


def _link(root: _State) -> None:
    """Sets `fallback`, breadth first, and hands down the matches of shorter suffixes."""
    waiting = deque(root.following.values())
    for state in waiting:
        state.fallback = root
    while waiting:
        state = waiting.popleft()
        state.matched = state.matched or state.fallback.matched
        for char, child in state.following.items():
            child.fallback = state.fallback.step(char)
            waiting.append(child)
