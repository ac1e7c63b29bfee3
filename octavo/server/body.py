"""Reading a JSON body strictly: right type, bounded size, no NaN, no number given as text."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from octavo.errors import InvalidValueError
from octavo.server.disconnect import ClientLeftError

Model = TypeVar("Model", bound=BaseModel)

_DISCARDED_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Body(Generic[Model]):
    """What a body says, and how long it was on the wire."""

    content: Model
    num_bytes: int


async def read_body(request: Request, model: type[Model], max_bytes: int) -> Body[Model]:
    """The request's body as a `model`. Raises an error for status 400 that names the field, or for 413 or 415."""
    _check_content_type(request)
    try:
        body = await _read_bounded(request, max_bytes)
    except ClientDisconnect:
        raise ClientLeftError from None
    try:
        content = model.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise _explain(error, body) from None
    _refuse_not_numbers(body)
    return Body(content, len(body))


def _check_content_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, f"the body must be JSON with Content-Type: application/json, not {media_type!r}")


async def _read_bounded(request: Request, max_bytes: int) -> bytes:
    too_large = HTTPException(413, f"the body is larger than {max_bytes} bytes", headers={"Connection": "close"})
    chunks = request.stream()
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        if "expect" not in request.headers:  # else the client asks first and sends nothing now
            await _discard(chunks)
        raise too_large
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            await _discard(chunks)
            raise too_large
    return bytes(body)


async def _discard(chunks: AsyncGenerator[bytes, None]) -> None:
    """Reads on for a while: a client whose connection is closed while it sends never sees the answer."""
    num_bytes = 0
    async for chunk in chunks:
        num_bytes += len(chunk)
        if num_bytes > _DISCARDED_BYTES:
            return


def _refuse_not_numbers(body: bytes) -> None:
    """pydantic takes NaN and Infinity where a field may be anything, and has no setting against it."""
    if b"NaN" in body or b"Infinity" in body:
        try:
            from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise _not_json(str(error)) from None


def _not_json(problem: str) -> InvalidValueError:
    return InvalidValueError(f"the body is not valid JSON: {problem}", code="invalid_json")


def _explain(error: ValidationError, body: bytes) -> InvalidValueError:
    """One error that names the first field at fault and, where it may have several types, what each of them wants."""
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        return _not_json(first["msg"].removeprefix("Invalid JSON: "))
    content = from_json(body)
    if not first["loc"]:
        return InvalidValueError(f"the body is not a JSON object: {_wish(first)}")
    # The first field at fault; inside it, the place that most of one of its types fitted.
    errors = [error for error in errors if error["loc"][0] == first["loc"][0]]
    place = max((_path(error, content) for error in errors), key=len)
    errors = [error for error in errors if _path(error, content) == place]
    param = _spell(place)
    if errors[0]["type"] == "missing":
        return InvalidValueError(f"{param} is missing", param=param, code="missing_required_parameter")
    wishes = "; or ".join(dict.fromkeys(_wish(error) for error in errors))
    return InvalidValueError(f"{param} is {short_json(errors[0]['input'])}: {wishes}", param=param)


def _wish(error: ErrorDetails) -> str:
    return error["msg"][0].lower() + error["msg"][1:]


def _path(error: ErrorDetails, content: Any) -> tuple[int | str, ...]:
    """Where in `content` the error lies: pydantic's location without the names of the union branches it tried."""
    path: list[int | str] = []
    for step in error["loc"]:
        in_object = isinstance(content, dict) and step in content
        in_array = isinstance(content, list) and isinstance(step, int) and step < len(content)
        if in_object or in_array:
            content = content[step]
        elif error["type"] != "missing" or step != error["loc"][-1]:
            continue
        path.append(step)
    return tuple(path)


def _spell(path: Sequence[int | str]) -> str:
    """("messages", 0, "content") -> "messages[0].content"."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.lstrip(".")


def short_json(value: Any) -> str:
    """A value for an error message, cut to a readable length."""
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:100] + "..."
