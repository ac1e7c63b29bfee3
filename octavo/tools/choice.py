"""Which of the tools offered an answer may call, as OpenAI's `tool_choice` says it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.errors import InvalidValueError, UnsupportedParameterError
from octavo.tools.tool import Tool, ToolChoice


def tools_in(definitions: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """The tools that these objects define, in OpenAI's form. Raises `InvalidValueError` naming the one at fault."""
    return checked_tools(_tool_in(definition, f"tools[{index}]") for index, definition in enumerate(definitions))


def checked_tools(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """The tools. Raises `InvalidValueError` if two are called alike."""
    known: dict[str, Tool] = {}
    for index, tool in enumerate(tools):
        if tool.name in known:
            raise InvalidValueError(
                f"tools[{index}].function.name is {tool.name!r}, as is that of another", param="tools"
            )
        known[tool.name] = tool
    return tuple(known.values())


def choice_of(given: Any, tools: tuple[Tool, ...], *, several: bool) -> ToolChoice | None:
    """What `tool_choice` makes of the tools offered; None if none may be called. Raises `InvalidValueError`."""
    if not tools:
        if given in (None, "none", "auto"):
            return None
        raise InvalidValueError(f"tool_choice is {_short(given)}, but no tools are offered", param="tool_choice")
    match given:
        case "none":
            return None
        case None | "auto" | "required":
            return ToolChoice(tools, required=given == "required", several=several)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice(_named([name], tools), required=True, several=False)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(allowed)}}:
            names = [_allowed_name(tool, i) for i, tool in enumerate(allowed)]
            return ToolChoice(_named(names, tools), required=mode == "required", several=several)
        case {"type": "custom"}:
            raise UnsupportedParameterError("tool_choice is a custom tool; Octavo knows functions", param="tool_choice")
    raise InvalidValueError(
        f"tool_choice is {_short(given)}; it must be none, auto, required, a function, or allowed_tools",
        param="tool_choice",
    )


def _tool_in(definition: Mapping[str, Any], path: str) -> Tool:
    _check_json(definition, path)
    match definition:
        case {"type": "function", "function": {"name": str(name), **function}}:
            parameters = function.get("parameters") or {}
            if isinstance(parameters, Mapping):
                return Tool(name, parameters, strict=function.get("strict") is True)
    raise InvalidValueError(
        f'{path} is {_short(definition)}; it must be {{"type": "function", "function": {{"name": ..., ...}}}}',
        param=path,
    )


def _check_json(definition: Any, path: str) -> None:
    """Templates and grammars are given it as JSON."""
    try:
        json.dumps(definition, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(f"{path} is not JSON: {error}", param=path) from None


def _allowed_name(tool: Any, index: int) -> str:
    match tool:
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return name
    raise InvalidValueError(f"tool_choice.allowed_tools.tools[{index}] names no function", param="tool_choice")


def _named(names: list[str], tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    known = {tool.name: tool for tool in tools}
    for name in names:
        if name not in known:
            raise InvalidValueError(
                f"tool_choice names {name[:100]!r}, which is none of the tools", param="tool_choice"
            )
    if not names:
        raise InvalidValueError("tool_choice allows no tools", param="tool_choice")
    return tuple(known[name] for name in dict.fromkeys(names))


def _short(value: Any) -> str:
    return json.dumps(value, default=repr)[:100]
