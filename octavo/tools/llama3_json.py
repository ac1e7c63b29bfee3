"""Llama 3.1 and later: the answer is a call and nothing else, or several with semicolons.

{"name": "get_weather", "parameters": {"city": "Paris"}}
"""

from __future__ import annotations

from octavo.tools.format import ToolFormat

LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    opening="",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    separator="; ",
    closing="",
    anywhere=False,
)


def writes(template: str) -> bool:
    """Whether a chat template's source speaks of this format."""
    return "<|python_tag|>" in template or '"parameters": dictionary of argument name' in template
