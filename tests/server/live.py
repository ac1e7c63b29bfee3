"""A server on a real socket, in a thread of the test process."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from octavo.engine.async_engine import AsyncEngine
from octavo.metrics.totals import EngineTotals
from octavo.server.app import create_app
from octavo.server.http_limits import RECEIVE_TIMEOUT_S, bounded_requests
from octavo.server.service import Service
from octavo.server.settings import ServerSettings


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, which must have exactly OpenAI's four keys."""
        content = self.json
        assert set(content) == {"error"}, content
        error: dict[str, Any] = content["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and error["message"]
        assert error["param"] is None or isinstance(error["param"], str)
        return error

    @property
    def events(self) -> list[Any]:
        """The events of a stream, which must end with [DONE]."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@dataclass
class Server:
    port: int
    engine: AsyncEngine
    service: Service
    totals: EngineTotals
    loop: asyncio.AbstractEventLoop = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def model(self) -> str:
        """The first name of the served model."""
        return self.service.settings.served_model_names[0]

    def request(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        """Sends `body` as JSON, or as it is if it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            content_type = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, raw, content_type | (headers or {}))
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def chat(self, content: object = "w", **fields: object) -> Answer:
        messages = [{"role": "user", "content": content}]
        return self.request("POST", "/v1/chat/completions", {"model": self.model, "messages": messages, **fields})

    def complete(self, prompt: object = "w", **fields: object) -> Answer:
        return self.request("POST", "/v1/completions", {"model": self.model, "prompt": prompt, **fields})

    def metric(self, name: str, **labels: str) -> float:
        """The value of a sample at /metrics: the sum over those with these labels."""
        page = self.request("GET", "/metrics").body.decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        values = [
            float(line.rpartition(" ")[2])
            for line in page.splitlines()
            if line.split("{")[0].split(" ")[0] == name and all(label in line for label in wanted)
        ]
        assert values, f"no sample {name} {labels}"
        return sum(values)


def eventually(holds: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Waits until `holds()`; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


@contextmanager
def serving(engine: AsyncEngine, settings: ServerSettings, totals: EngineTotals) -> Iterator[Server]:
    """Starts the engine and serves it; stops both at the end."""
    app = create_app(engine, settings, totals)
    http = bounded_requests(RECEIVE_TIMEOUT_S)
    config = uvicorn.Config(app, port=0, http=http, ws="none", lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    started: list[Server] = []

    async def main() -> None:
        engine.start()
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.001)
        port = server.servers[0].sockets[0].getsockname()[1]
        started.append(Server(port, engine, app.state.service, totals, asyncio.get_running_loop()))
        await running
        await engine.shutdown(0)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        eventually(lambda: bool(started) or not thread.is_alive())
        yield started[0]
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(20)
        assert not thread.is_alive()
