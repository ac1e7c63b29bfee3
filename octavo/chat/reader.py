"""One answer of a chat, read for its parts as it comes: reasoning, content, calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.reasoning.splitter import ReasoningSplitter, SplitText
from octavo.request import FinishReason, ToolCall
from octavo.tools.reader import CallArguments, CallBegin, Content, ToolCallReader


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thought before it answered."""

    text: str


ChatPart = Reasoning | Content | CallBegin | CallArguments


class ChoiceReader:
    """Reads one answer. `reasoning` and `calls` are None where the answer can have none."""

    def __init__(
        self, reasoning: ReasoningSplitter | None, calls: ToolCallReader | None, *, shows_reasoning: bool
    ) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self._shows_reasoning = shows_reasoning

    def append(self, text: str) -> list[ChatPart]:
        """The parts that `text` makes certain."""
        split = SplitText(content=text) if self._reasoning is None else self._reasoning.append(text)
        return self._parts(split)

    def flush(self) -> list[ChatPart]:
        """What was held back; nothing more will come."""
        parts = [] if self._reasoning is None else self._parts(self._reasoning.flush())
        return parts + ([] if self._calls is None else list(self._calls.flush()))

    def finish_reason(self, reason: FinishReason) -> str:
        """Why the answer ended, as OpenAI says it."""
        called = self._calls is not None and self._calls.num_calls > 0
        return "tool_calls" if called and reason == "stop" else reason

    def _parts(self, split: SplitText) -> list[ChatPart]:
        parts: list[ChatPart] = [Reasoning(split.reasoning)] if split.reasoning and self._shows_reasoning else []
        if split.content:
            parts += [Content(split.content)] if self._calls is None else self._calls.append(split.content)
        return parts


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """A whole answer, told apart."""

    reasoning: str
    content: str
    tool_calls: tuple[ToolCall, ...]


def put_together(parts: Sequence[ChatPart]) -> AnswerParts:
    """The pieces that a reader told, each kind in one."""

    def arguments(index: int) -> str:
        return "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == index)

    return AnswerParts(
        "".join(part.text for part in parts if isinstance(part, Reasoning)),
        "".join(part.text for part in parts if isinstance(part, Content)),
        tuple(ToolCall(part.name, arguments(part.index)) for part in parts if isinstance(part, CallBegin)),
    )
