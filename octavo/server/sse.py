"""Server-sent events: framing, and a response that streams them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError
from octavo.server.disconnect import ClientLeftError, unless_client_leaves
from octavo.server.errors import failure_of

logger = logging.getLogger(__name__)

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def event(payload: bytes) -> bytes:
    """One event. `payload` is JSON on one line."""
    return b"data: " + payload + b"\n\n"


class EventStream(Response):
    """Sends `events` (already framed) as they come, then [DONE]. When none comes for `ping_interval_s`, a comment shows
    clients and proxies that the connection lives.

    An error among them is sent as an event, because the status is out already. When the client leaves, `events` is
    closed at once.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], ping_interval_s: float) -> None:
        self._events = events
        self._ping_interval_s = ping_interval_s
        self._quiet = True
        self.status_code = 200
        self.background = None
        self.init_headers(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            with suppress(ClientLeftError):
                await unless_client_leaves(self._send_all(send), receive)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pinging = asyncio.ensure_future(self._ping(send))
        try:
            async for framed in self._events:
                self._quiet = False
                await send({"type": "http.response.body", "body": framed, "more_body": True})
        except Exception as error:
            if not isinstance(error, OctavoError):
                logger.exception("a stream failed")
            await send({"type": "http.response.body", "body": event(failure_of(error).body), "more_body": True})
        finally:
            pinging.cancel()
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _ping(self, send: Send) -> None:
        while True:
            await asyncio.sleep(self._ping_interval_s)
            if self._quiet:
                await send({"type": "http.response.body", "body": PING, "more_body": True})
            self._quiet = True
