"""Who may use the server."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.api_keys import ApiKey, matching
from octavo.server.errors import failure_of

_OPEN_PATHS = frozenset({"/health", "/live", "/ready"})
_ADMIN_PATHS = frozenset({"/reset_prefix_cache"})
_SCOPE_KEY = "octavo.api_key"


class BearerAuth:
    """ASGI middleware: all but /health, /live and /ready needs one of `keys` as bearer token. Without keys all pass.

    With an `admin_key`, what changes the server for everybody needs that one; it opens everything else, too.
    Which key it was is kept in the scope, for `api_key_of`.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[ApiKey], admin_key: ApiKey | None = None) -> None:
        self._app = app
        admin_keys = () if admin_key is None else (admin_key,)
        self._keys = (*keys, *admin_keys) if keys else ()
        self._admin_keys = admin_keys or self._keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keys = self._keys_for(scope["path"]) if scope["type"] == "http" else ()
        if keys:
            key = _identify(Headers(scope=scope).get("authorization"), keys)
            if isinstance(key, str):
                error = HTTPException(401, key, headers={"WWW-Authenticate": "Bearer"})
                await failure_of(error).response()(scope, receive, send)
                return
            scope[_SCOPE_KEY] = key
        await self._app(scope, receive, send)

    def _keys_for(self, path: str) -> Sequence[ApiKey]:
        """The keys that open a path; none: it is open."""
        if path in _OPEN_PATHS:
            return ()
        return self._admin_keys if path in _ADMIN_PATHS else self._keys


def _identify(authorization: str | None, keys: Sequence[ApiKey]) -> ApiKey | str:
    """The key that came with a request, or what is wrong with it."""
    if authorization is None:
        return "an API key is required: send it as 'Authorization: Bearer KEY'"
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return "the Authorization header must be 'Bearer KEY'"
    return matching(keys, token.strip(" \t").encode("latin-1")) or "the API key is not valid"


def api_key_of(connection: HTTPConnection) -> ApiKey | None:
    """The key that a request came with; None where none is asked for."""
    key: ApiKey | None = connection.scope.get(_SCOPE_KEY)
    return key
