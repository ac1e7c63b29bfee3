"""Counts HTTP requests."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.metrics.http_totals import Endpoint, HttpTotals

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CLIENT_GONE = 499


class HttpMetrics:
    """ASGI middleware. A client that left before an answer began counts as 499."""

    def __init__(self, app: ASGIApp, totals: HttpTotals) -> None:
        self._app = app
        self._totals = totals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = _CLIENT_GONE

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = time.monotonic()
        try:
            await self._app(scope, receive, watch)
        finally:
            route = scope.get("route")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            endpoint = Endpoint(method, "none" if route is None else route.path)
            self._totals.add(endpoint, status, time.monotonic() - began)
