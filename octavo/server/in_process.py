"""Requests to the application without a socket: the routes, the checks and the errors are the server's own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message


@dataclass(frozen=True, slots=True)
class InProcessAnswer:
    status: int
    headers: dict[str, str]
    body: bytes


async def post(app: ASGIApp, path: str, body: bytes) -> InProcessAnswer:
    """Sends JSON to a route and waits for the whole answer."""
    sent: list[Message] = []
    coming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if coming:
            return coming.pop()
        return await _never()

    async def send(message: Message) -> None:
        sent.append(message)

    await app(_scope(path, len(body)), receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start.get("headers", [])}
    content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return InProcessAnswer(start["status"], headers, content)


def _scope(path: str, num_bytes: int) -> dict[str, object]:
    headers = {"content-type": "application/json", "content-length": str(num_bytes), "host": "localhost"}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 80),
    }


async def _never() -> Message:
    """A client that stays."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
