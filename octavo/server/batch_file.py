"""OpenAI's batch files: a request a line in, an answer or an error a line out."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from octavo.errors import InvalidValueError
from octavo.json_text import parse_json
from octavo.server.in_process import InProcessAnswer

PATHS = ("/v1/chat/completions", "/v1/completions")
ID_PREFIX = "batch_req_"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    custom_id: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class BatchLine:
    """Line `number`, counted from 1: a request, or what is wrong with it."""

    number: int
    custom_id: str | None
    request: BatchRequest | None = None
    problem: InvalidValueError | None = None


def read_batch(path: Path) -> Iterator[BatchLine]:
    """The lines of an input file; blank ones are passed over."""
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _line(number, line, seen)


def answer_line(line: BatchLine, answer: InProcessAnswer) -> dict[str, Any]:
    """What an answer of the server becomes, refusals included."""
    response = {
        "status_code": answer.status,
        "request_id": answer.headers.get("x-request-id", ""),
        "body": json.loads(answer.body),
    }
    return _output(line) | {"response": response, "error": None}


def has_failed(written: dict[str, Any]) -> bool:
    """Whether a line of an output file says that something went wrong."""
    return written["error"] is not None or written["response"]["status_code"] != HTTPStatus.OK


def error_line(line: BatchLine) -> dict[str, Any]:
    """What a line that is no request becomes."""
    assert line.problem is not None
    error = {"code": line.problem.code, "message": str(line.problem), "line": line.number}
    return _output(line) | {"response": None, "error": error}


def _output(line: BatchLine) -> dict[str, Any]:
    return {"id": f"{ID_PREFIX}{uuid.uuid4().hex}", "custom_id": line.custom_id}


def _line(number: int, text: bytes, seen: set[str]) -> BatchLine:
    custom_id: str | None = None
    try:
        fields = _fields(text)
        custom_id = _text(fields, "custom_id")
        if custom_id in seen:
            raise InvalidValueError(f"custom_id {custom_id!r} has been used by an earlier line")
        seen.add(custom_id)
        return BatchLine(number, custom_id, _request(fields, custom_id))
    except InvalidValueError as error:
        return BatchLine(number, custom_id, problem=InvalidValueError(f"line {number}: {error}", code=error.code))


def _request(fields: dict[str, Any], custom_id: str) -> BatchRequest:
    method, path, body = _text(fields, "method"), _text(fields, "url"), fields.get("body")
    if method != "POST":
        raise InvalidValueError(f"method is {method!r}; it must be POST")
    if path not in PATHS:
        raise InvalidValueError(f"url is {path!r}; it must be one of {', '.join(PATHS)}")
    if not isinstance(body, dict):
        raise InvalidValueError("body is missing; it must be an object")
    if body.get("stream"):
        raise InvalidValueError("body.stream is true; answers in a file are not streamed")
    try:
        return BatchRequest(custom_id, path, json.dumps(body).encode())
    except RecursionError:
        raise InvalidValueError("body is nested too deeply", code="invalid_json") from None


def _fields(text: bytes) -> dict[str, Any]:
    try:
        fields = parse_json(text)
    except ValueError as error:
        raise InvalidValueError(f"not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise InvalidValueError("not a JSON object")
    return fields


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidValueError(f"{name} is missing; it must be non-empty text")
    return value
