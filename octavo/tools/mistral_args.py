"""Mistral since its eleventh tokenizer: a special token before each name and one before its arguments.

[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
"""

from __future__ import annotations

from octavo.tools.format import ToolFormat

MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    opening="[TOOL_CALLS]",
    before_name="",
    before_arguments="[ARGS]",
    after_arguments="",
    separator="[TOOL_CALLS]",
    closing="",
    anywhere=True,
    short_ids=True,
)


def writes(template: str) -> bool:
    """Whether a chat template's source speaks of this format."""
    return "[TOOL_CALLS]" in template and "[ARGS]" in template
