"""Who may use the server."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.api_keys import ApiKey, matching
from octavo.server.errors import failure_of

_OPEN_PATHS = frozenset({"/health"})
_SCOPE_KEY = "octavo.api_key"


class BearerAuth:
    """ASGI middleware: everything but /health needs one of `keys` as bearer token. Without keys it lets all pass.

    Which key it was is kept in the scope, for `api_key_of`.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[ApiKey]) -> None:
        self._app = app
        self._keys = tuple(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and scope["path"] not in _OPEN_PATHS:
            key = self._identify(Headers(scope=scope).get("authorization"))
            if isinstance(key, str):
                error = HTTPException(401, key, headers={"WWW-Authenticate": "Bearer"})
                await failure_of(error).response()(scope, receive, send)
                return
            scope[_SCOPE_KEY] = key
        await self._app(scope, receive, send)

    def _identify(self, authorization: str | None) -> ApiKey | str:
        """The key that came with a request, or what is wrong with it."""
        if authorization is None:
            return "an API key is required: send it as 'Authorization: Bearer KEY'"
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return "the Authorization header must be 'Bearer KEY'"
        return matching(self._keys, token.strip(" \t").encode("latin-1")) or "the API key is not valid"


def api_key_of(connection: HTTPConnection) -> ApiKey | None:
    """The key that a request came with; None where none is asked for."""
    key: ApiKey | None = connection.scope.get(_SCOPE_KEY)
    return key
