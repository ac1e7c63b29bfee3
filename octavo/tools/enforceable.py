"""Tools as far as their schemas can be enforced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo.errors import InvalidValueError
from octavo.grammar.forms import Form
from octavo.tools.call_forms import arguments_form
from octavo.tools.tool import Tool

Check = Callable[[Form, str], object]
"""Raises `InvalidValueError`, for the request field named, if a form cannot be enforced."""


def enforceable(tool: Tool, param: str, check: Check) -> Tool:
    """The tool, with what of its parameters can be enforced.

    Agents offer tools with schemas written for people. Of one that is not strict, keywords that cannot be enforced are
    passed over, and of a schema that cannot be read at all only that arguments are an object remains. A strict one is
    refused: `InvalidValueError`, naming the keyword.
    """
    unread = replace(tool, parameters={"type": "object", "additionalProperties": True})
    for candidate in (tool, replace(tool, lenient=True)):
        try:
            check(arguments_form(candidate), f"{param}.function.parameters")
        except InvalidValueError:
            if tool.strict:
                raise
        else:
            return candidate
    return unread
