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


def chat_format(template: str | None, tool_parser: str | None, reasoning_parser: str | None) -> ChatFormat:
    """The formats of these names, or those that the template's source speaks of. Raises `ConfigError`."""
    source = template or ""
    tools = format_in(source) if tool_parser is None else tool_format(tool_parser)
    if reasoning_parser is None:
        reasoning = markers_in(source)
    else:
        reasoning = None if reasoning_parser == NO_PARSER else reasoning_markers(reasoning_parser)
    return ChatFormat(tools, reasoning, describes_tools=tools is GENERIC_JSON and "tools" not in source)
