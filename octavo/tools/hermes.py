"""Hermes and Qwen: each call in a pair of tags, amid text.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from __future__ import annotations

from octavo.tools.format import ToolFormat

HERMES = ToolFormat(
    name="hermes",
    opening="<tool_call>",
    before_name='\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    separator="\n<tool_call>",
    closing="",
    anywhere=True,
)


def writes(template: str) -> bool:
    """Whether a chat template's source speaks of this format."""
    return "<tool_call>" in template and "<function=" not in template
