"""For models whose template knows no tools: they are described in a system message, and a call is an object.

{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidValueError
from octavo.tools.format import ToolFormat

GENERIC_JSON = ToolFormat(
    name="generic_json",
    opening='{"tool_calls": [',
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    separator=", ",
    closing="]}",
    anywhere=False,
)

_INSTRUCTIONS = (
    "You can call functions. To call some, answer with nothing but one line of JSON of this form: "
    '{"tool_calls": [{"name": NAME, "arguments": {...}}]}. If none is needed, answer in plain text. The functions:'
)


def with_tools_described(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation for a template that knows neither tools nor calls nor their results.

    Contents are text and arguments are objects, as far as their text is one's. Raises `InvalidValueError` for a call
    of no function.
    """
    described = "\n".join([_INSTRUCTIONS, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)])
    plain = [_plain(message) for message in messages]
    if plain and plain[0]["role"] == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{described}"}, *plain[1:]]
    return [{"role": "system", "content": described}, *plain]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Calls and results as text."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result of the call: {message['content']}"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    written = [_written(call) for call in calls]
    text = json.dumps({"tool_calls": written}, ensure_ascii=False)
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, [message.get("content"), text]))}


def _written(call: Mapping[str, Any]) -> dict[str, Any]:
    match call:
        case {"function": {"name": str(name), **function}}:
            return {"name": name, "arguments": function.get("arguments")}
    raise InvalidValueError(
        f"messages has the call {json.dumps(call, default=repr)[:100]}, of which function.name is not text",
        param="messages",
    )
