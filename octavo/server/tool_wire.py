"""The fields of a chat request that offer tools, and the calls in its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from octavo.errors import InvalidValueError, UnsupportedParameterError
from octavo.server import unsupported
from octavo.server.wire import WireModel
from octavo.tools.choice import checked_tools
from octavo.tools.tool import Tool


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
    return checked_tools(_tool(definition, f"tools[{i}]", strict=strict) for i, definition in enumerate(definitions))


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
