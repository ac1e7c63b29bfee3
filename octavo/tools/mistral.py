"""Mistral: a list of calls after a special token.

[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]
"""

from __future__ import annotations

from octavo.tools.format import ToolFormat

MISTRAL = ToolFormat(
    name="mistral",
    opening="[TOOL_CALLS][",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    separator=", ",
    closing="]",
    anywhere=True,
    short_ids=True,
)


def writes(template: str) -> bool:
    """Whether a chat template's source speaks of this format."""
    return "[TOOL_CALLS]" in template and "[ARGS]" not in template
