"""Messages in the one form templates can rely on, from the several that clients send.

Clients leave `content` out, send null, or a list of parts; they send the arguments of a tool call as JSON text. The
same conversation must give the same prompt in every spelling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import ChatTemplateError, InvalidValueError
from octavo.json_text import parse_json

PART_SEPARATOR = "\n"


def normalized(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Plain copies with `role`, `content` (text or a list of text parts) and no nulls at the top.

    Raises `InvalidValueError` naming the message and field.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise _invalid("messages", "must be a list of messages")
    if not messages:
        raise _invalid("messages", "is empty; it must have at least one message")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def flattened(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with the parts of each content joined to one text."""
    return [{**message, "content": _joined(message["content"])} for message in messages]


def split_into_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with every content as a list of parts."""
    return [{**message, "content": _parted(message["content"])} for message in messages]


def cut_after_final_message(prompt: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """What a template wrote, up to the end of the last message's text, which must be there (`ChatTemplateError`)."""
    final = _joined(normalized(messages)[-1]["content"]).strip()
    position = prompt.rfind(final)
    if not final or position < 0:
        raise ChatTemplateError(
            "the chat template does not write the last message as it is, so it cannot be continued", param="messages"
        )
    return prompt[: position + len(final)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _invalid(where, "must be an object with a role and a content")
    plain = {str(key): _plain(value, f"{where}.{key}") for key, value in message.items() if value is not None}
    if not isinstance(plain.get("role"), str):
        raise _invalid(f"{where}.role", "must be text")
    plain["content"] = _content(plain.get("content"), f"{where}.content")
    calls = plain.pop("tool_calls", None)
    if calls:
        plain["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    return plain


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    if content is None or content == []:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(where, "must be text or a list of parts")
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: Any, where: str) -> dict[str, Any]:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise _invalid(where, "must be an object with a type")
    if part["type"] != "text":
        raise _invalid(f"{where}.type", f"is {part['type']!r}; this model takes parts of type 'text' only")
    if not isinstance(part.get("text"), str):
        raise _invalid(f"{where}.text", "must be text")
    return part


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise _invalid(where, "must be a list of calls")
    return [_tool_call(call) for call in calls]


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    """The call with its arguments as an object, which is what templates write out; text that is none stays text."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = parse_json(function["arguments"])
    except ValueError:
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else PART_SEPARATOR.join(part["text"] for part in content)


def _parted(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _plain(value: Any, where: str) -> Any:
    """A deep copy in JSON's own types, so that a template can reach no method of anything else."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):  # an enumeration, for one
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_plain(item, where) for item in value]
    raise _invalid(where, f"has a {type(value).__name__}, which JSON cannot hold")


def _invalid(where: str, problem: str) -> InvalidValueError:
    return InvalidValueError(f"{where} {problem}", param="messages")
