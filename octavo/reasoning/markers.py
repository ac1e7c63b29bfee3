"""Between which markers the models of a family reason, and how a chat template tells."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """Reasoning is what stands between `start` and `end`, at the beginning of an answer."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class ReasoningState:
    """What a prompt leaves open: `begun`, it has opened the reasoning itself; `may_begin`, the answer can open it."""

    begun: bool
    may_begin: bool


_THINK = ReasoningMarkers("<think>", "</think>")

REASONING_PARSERS = {
    "think": _THINK,
    "deepseek_r1": _THINK,
    "qwen3": _THINK,
    "glm45": _THINK,
    "mistral": ReasoningMarkers("[THINK]", "[/THINK]"),
    "seed_oss": ReasoningMarkers("<seed:think>", "</seed:think>"),
    "cohere": ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>"),
    "ernie45": _THINK,
}
"""By the names vLLM has for them. Several families share their markers."""


def reasoning_markers(name: str) -> ReasoningMarkers:
    """The markers of that name. Raises `ConfigError` naming the known ones."""
    found = REASONING_PARSERS.get(name)
    if found is None:
        raise ConfigError(f"--reasoning-parser is {name!r}; known: {', '.join(sorted(REASONING_PARSERS))}, none")
    return found


def markers_in(template: str) -> ReasoningMarkers | None:
    """The markers that a chat template's source speaks of, if any."""
    return next((markers for markers in REASONING_PARSERS.values() if markers.end in template), None)


def state_after(prompt: str, markers: ReasoningMarkers) -> ReasoningState:
    """How reasoning stands at the end of a prompt."""
    tail = prompt.rstrip()
    begun = tail.endswith(markers.start)
    return ReasoningState(begun, may_begin=not begun and not tail.endswith(markers.end))
