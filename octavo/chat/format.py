"""How the served model writes what is not plain text: the calls it makes, and its reasoning."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.reasoning.markers import ReasoningMarkers, markers_in, reasoning_markers
from octavo.tools.format import ToolFormat
from octavo.tools.generic_json import GENERIC_JSON
from octavo.tools.registry import format_in, tool_format

NO_PARSER = "none"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """`describes_tools`: the template knows no tools, so they are described in a message."""

    tools: ToolFormat
    reasoning: ReasoningMarkers | None
    describes_tools: bool


@dataclass(frozen=True, slots=True)
class ChatParsers:
    """Parsers by their names; None: what a chat template's source speaks of. Raises `ConfigError` for unknown names."""

    tool_calls: str | None = None
    reasoning: str | None = None

    def __post_init__(self) -> None:
        self.format_under(None)

    def format_under(self, template: str | None) -> ChatFormat:
        """How answers are written that follow on what `template`, a source, writes."""
        source = template or ""
        tools = format_in(source) if self.tool_calls is None else tool_format(self.tool_calls)
        describes_tools = tools is GENERIC_JSON and "tools" not in source
        return ChatFormat(tools, self._reasoning_under(source), describes_tools)

    def _reasoning_under(self, source: str) -> ReasoningMarkers | None:
        if self.reasoning is None:
            return markers_in(source)
        return None if self.reasoning == NO_PARSER else reasoning_markers(self.reasoning)
