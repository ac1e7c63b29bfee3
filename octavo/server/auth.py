"""Who may use the server."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.errors import failure_of

_OPEN_PATHS = frozenset({"/health"})


class BearerAuth:
    """ASGI middleware: everything but /health needs one of `keys` as bearer token. Without keys it lets all pass.

    Keys are compared as digests in constant time, each against all, so that timing tells nothing about them.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = tuple(_digest(key.encode()) for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._digests and scope["path"] not in _OPEN_PATHS:
            problem = self._problem(Headers(scope=scope).get("authorization"))
            if problem is not None:
                error = HTTPException(401, problem, headers={"WWW-Authenticate": "Bearer"})
                await failure_of(error).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, authorization: str | None) -> str | None:
        if authorization is None:
            return "an API key is required: send it as 'Authorization: Bearer KEY'"
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return "the Authorization header must be 'Bearer KEY'"
        given = _digest(token.strip(" \t").encode("latin-1"))
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return None if any(matches) else "the API key is not valid"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
