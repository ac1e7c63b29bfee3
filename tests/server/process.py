"""A server in a process of its own."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.live import eventually

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """Collects the process's output; `port` is known once it has said where it listens."""

    def __init__(self, *command: str, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def port(self) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.output)
        assert found is not None, self.output
        return int(found[1])

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.output
            return "http://127.0.0.1:" in self.output

        eventually(is_ready, timeout_s)

    def wait(self, timeout_s: float = 20.0) -> int:
        """The exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))


@contextmanager
def server_process(*command: str, cwd: Path = ROOT) -> Iterator[ServerProcess]:
    """Starts `python -m command...`, waits until it is ready, and kills it at the end if it still runs.

    Python looks for modules in `cwd` first: from the root of the sources `tests` is found, from elsewhere the installed
    package.
    """
    server = ServerProcess(*command, cwd=cwd)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.process.kill()
        server.wait()
