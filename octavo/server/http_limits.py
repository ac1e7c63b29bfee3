"""What a client may send before any of our code sees it, and how long it may take."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.server.errors import INVALID_REQUEST, Failure

MAX_HEAD_BYTES = 64 * 2**10
RECEIVE_TIMEOUT_S = 60.0

_TIMED_OUT = Failure(408, "the request took too long to arrive", INVALID_REQUEST, "request_timeout")


class BoundedRequests(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which of itself collects heads and trailers without end and waits for them for ever.

    Counts the bytes that bring a request no further: all of its head, and what follows the last byte of its body
    (extensions of chunks, trailers). What a packet holds beyond counts with its beginning. A connection on which a
    request is expected or has begun has `receive_timeout_s` until that is complete.
    """

    receive_timeout_s = RECEIVE_TIMEOUT_S
    _num_idle_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._expect()
        self._num_idle_bytes += len(data)
        super().data_received(data)
        if self._num_idle_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(
                f"the request line and headers, or the trailers, have more than {MAX_HEAD_BYTES} bytes"
            )

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or too much of it."""
        self._refuse(Failure(400, msg, INVALID_REQUEST, "invalid_http"))

    def on_headers_complete(self) -> None:
        self._num_idle_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_idle_bytes = 0
        self._arrived()
        super().on_message_complete()

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(self.receive_timeout_s, self._give_up)

    def _arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self._refuse(_TIMED_OUT)

    def _refuse(self, failure: Failure) -> None:
        """Answers, unless an answer is under way, and closes the connection."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            status = f"HTTP/1.1 {failure.status} {HTTPStatus(failure.status).phrase}"
            head = f"{status}\r\nConnection: close\r\nContent-Type: application/json\r\n"
            self.transport.write(f"{head}Content-Length: {len(failure.body)}\r\n\r\n".encode() + failure.body)
        self.transport.close()


def bounded_requests(receive_timeout_s: float) -> type[BoundedRequests]:
    """The protocol with another time limit: uvicorn makes its own objects of the class it is given."""
    return type("BoundedRequests", (BoundedRequests,), {"receive_timeout_s": receive_timeout_s})
