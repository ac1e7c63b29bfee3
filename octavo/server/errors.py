"""The one place where an error becomes an HTTP status and OpenAI's error body."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.errors import (
    EngineDeadError,
    InvalidValueError,
    OctavoError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
    ShuttingDownError,
    StepError,
    UnknownModelError,
)
from octavo.server.disconnect import ClientLeftError

logger = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
_SERVER_ERROR = "server_error"

# Statuses that routing, authentication and reading the body give.
_HTTP_CODES = {
    HTTPStatus.UNAUTHORIZED: "invalid_api_key",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "unsupported_media_type",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What a client is told. `code` is a stable slug, `param` the request field at fault."""

    status: int
    message: str
    type: str
    code: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()

    def response(self) -> Response:
        return Response(self.body, self.status, self.headers, "application/json")


def failure_of(error: Exception) -> Failure:
    """What to tell the client about `error`. Nothing internal: an unexpected error is only called that."""
    match error:
        case UnknownModelError():
            return Failure(404, str(error), INVALID_REQUEST, error.code, error.param)
        case RequestError():
            return Failure(400, str(error), INVALID_REQUEST, error.code, error.param)
        case ShuttingDownError():
            headers = {"Retry-After": "1", "x-should-retry": "true"}
            return Failure(503, str(error), _SERVER_ERROR, "shutting_down", headers=headers)
        case QueueFullError():
            headers = {"Retry-After": "1", "x-should-retry": "true"}
            return Failure(503, str(error), _SERVER_ERROR, "queue_full", headers=headers)
        case QueueTimeoutError():
            headers = {"Retry-After": "1", "x-should-retry": "true"}
            return Failure(503, str(error), _SERVER_ERROR, "queue_timeout", headers=headers)
        case EngineDeadError():
            return Failure(503, str(error), _SERVER_ERROR, "engine_dead")
        case StepError():
            return Failure(500, "the engine failed while computing this request", _SERVER_ERROR, "step_failed")
        case HTTPException():
            return _of_http_exception(error)
        case RequestValidationError():
            return _of_validation_error(error)
        case _:
            return Failure(500, "an unexpected error occurred", _SERVER_ERROR, "internal_error")


def _of_http_exception(error: HTTPException) -> Failure:
    code = _HTTP_CODES.get(HTTPStatus(error.status_code), "http_error")
    kind = INVALID_REQUEST if error.status_code < 500 else _SERVER_ERROR
    return Failure(error.status_code, str(error.detail), kind, code, headers=dict(error.headers or {}))


def _of_validation_error(error: RequestValidationError) -> Failure:
    """For paths and queries; bodies are read in body.py."""
    first: dict[str, Any] = error.errors()[0]
    param = str(first["loc"][-1])
    return Failure(400, f"{param}: {first['msg']}", INVALID_REQUEST, InvalidValueError.code, param)


def add_error_responses(app: FastAPI) -> None:
    """Makes every error that a route raises an OpenAI error body."""

    async def respond(_: Request, error: Exception) -> Response:
        return failure_of(error).response()

    async def respond_to_nobody(*_: object) -> Response:
        return Response(status_code=499)

    async def respond_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.NOT_FOUND:
            error.detail = f"there is no {request.url.path[:200]}"
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            error.detail = f"{request.method} is not allowed for {request.url.path[:200]}"
        return failure_of(error).response()

    app.add_exception_handler(OctavoError, respond)
    app.add_exception_handler(ClientLeftError, respond_to_nobody)
    app.add_exception_handler(RequestValidationError, respond)
    app.add_exception_handler(HTTPException, respond_http)


class UnexpectedErrors:
    """ASGI middleware, innermost: what no route foresaw is logged in full and told to the client in one sentence."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception as error:
            logger.exception("%s %s failed", scope.get("method"), scope.get("path"))
            if started:
                raise
            await failure_of(error).response()(scope, receive, send)
