"""The fields of a chat request that offer tools, and the calls in its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from octavo.errors import InvalidValueError, UnsupportedParameterError
from octavo.server import unsupported
from octavo.server.body import short_json
from octavo.server.wire import WireModel
from octavo.tools.tool import Tool, ToolChoice


class FunctionDefinition(WireModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(WireModel):
    type: str = "function"
    function: FunctionDefinition | None = None


class FunctionCall(WireModel):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(WireModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


def tools_of(definitions: Sequence[ToolDefinition], *, strict: bool) -> tuple[Tool, ...]:
    """The tools offered. Raises a `RequestError` naming the one that is malformed."""
    tools = tuple(_tool(definition, f"tools[{i}]", strict=strict) for i, definition in enumerate(definitions))
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidValueError(f"tools[{index}].function.name is {name!r}, as is that of another", param="tools")
    return tools


def rendered(definitions: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """The tools as chat templates know them."""
    return [
        {
            "type": "function",
            "function": definition.function.model_dump(
                include={"name", "description", "parameters"}, exclude_none=True
            ),
        }
        for definition in definitions
        if definition.function is not None
    ]


def rendered_call(call: ToolCall) -> dict[str, Any]:
    """A call of the history as chat templates know it."""
    function = {"name": call.function.name, "arguments": call.function.arguments or {}}
    return {"type": call.type, "function": function} | ({} if call.id is None else {"id": call.id})


def choice_of(given: Any, tools: tuple[Tool, ...], *, several: bool) -> ToolChoice | None:
    """What `tool_choice` makes of the tools offered; None if none may be called. Raises `InvalidValueError`."""
    if not tools:
        if given in (None, "none", "auto"):
            return None
        raise InvalidValueError(f"tool_choice is {short_json(given)}, but no tools are offered", param="tool_choice")
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
        f"tool_choice is {short_json(given)}; it must be none, auto, required, a function, or allowed_tools",
        param="tool_choice",
    )


def _tool(definition: ToolDefinition, path: str, *, strict: bool) -> Tool:
    if definition.type != "function":
        raise UnsupportedParameterError(
            f"{path}.type is {definition.type[:50]!r}; Octavo knows tools of type 'function'", param=f"{path}.type"
        )
    unsupported.check_undeclared(definition.undeclared(), {}, path, strict=strict)
    function = definition.function
    if function is None:
        raise InvalidValueError(f"{path}.function is missing", param=f"{path}.function")
    unsupported.check_undeclared(function.undeclared(), {}, f"{path}.function", strict=strict)
    return Tool(function.name, function.parameters or {}, strict=function.strict is True)


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
