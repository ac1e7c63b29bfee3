"""The grammar of answers that may or must call tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.grammar.forms import Chain, Form, Json, JsonStyle, Marker, OneOf, Regex, Repeat, Tags
from octavo.tools.format import ToolFormat
from octavo.tools.tool import Tool, ToolChoice

# Beside any of these, properties that a schema does not name may be accounted for elsewhere.
_OPEN = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")


def answer_form(tool_format: ToolFormat, choice: ToolChoice, otherwise: Form | None) -> Form:
    """Calls, if they are required; else calls or text, or `otherwise` in place of text.

    What follows where a call has opened is a call of one of the tools, with arguments that its schema accepts.
    """
    calls = _calls(tool_format, choice)
    opened = Chain((Marker(tool_format.opening), calls))
    if choice.required:
        return opened
    if otherwise is not None:
        return OneOf((opened, otherwise))
    if tool_format.anywhere:
        return Tags(((tool_format.opening, calls),), several=choice.several)
    return OneOf((opened, _text_not_beginning_with(tool_format.marker[0])))


def arguments_form(tool: Tool) -> Form:
    """The arguments of a call."""
    return Json(_closed(tool.parameters), JsonStyle(lenient=tool.lenient))


def _calls(tool_format: ToolFormat, choice: ToolChoice) -> Form:
    call = OneOf(tuple(_call(tool_format, tool) for tool in choice.tools))
    several = Repeat(call, tool_format.separator, at_most=None if choice.several else 1)
    return Chain((several, Marker(tool_format.closing)))


def _call(tool_format: ToolFormat, tool: Tool) -> Form:
    head = f"{tool_format.before_name}{tool.name}{tool_format.before_arguments}"
    return Chain((Marker(head), arguments_form(tool), Marker(tool_format.after_arguments)))


def _closed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without arguments that it does not name, unless it speaks of them: a model must not invent any."""
    schema = {"type": "object", **parameters}
    return schema if any(key in schema for key in _OPEN) else {**schema, "additionalProperties": False}


def _text_not_beginning_with(char: str) -> Form:
    return Regex(rf"\s*([^\s{json.dumps(char)[1:-1]}](.|\n)*)?")
