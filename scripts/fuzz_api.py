"""Fuzzes a real server over a socket. Fails if a status is 5xx, a connection is dropped, or something is left behind.

First, requests that schemathesis makes up from the server's own OpenAPI document: a third of them as they are;
in the others what nothing gets far without is put right (the model, a short answer). Then streams whose readers leave
after a random number of bytes; after them no request and no block may be held.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.schemas import APIOperation

MODEL = "fuzzed"
LONGEST_ANSWER = 8
REQUESTS_AT_ONCE = 16
# Of all requests, the share that goes to operations that take a body: the others have little to vary.
SHARE_WITH_BODY = 0.9


@dataclass
class Report:
    """What came of each operation's requests, and what must not have happened."""

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def num_requests(self) -> int:
        return sum(counts.total() for counts in self.statuses.values())

    def count(self, operation: str, status: int) -> None:
        self.statuses.setdefault(operation, Counter())[status] += 1

    def __str__(self) -> str:
        rows = [
            f"{operation:34} {', '.join(f'{status}: {count}' for status, count in sorted(counts.items()))}"
            for operation, counts in sorted(self.statuses.items())
        ]
        return "\n".join([*rows, f"{self.num_requests} requests"])


class Server:
    """`octavo serve` in a process of its own; `url` once it is ready."""

    def __init__(self, model: str) -> None:
        command = ["octavo", "serve", model, "--port", "0", "--served-model-name", MODEL, "--max-model-len", "1024"]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: list[str] = []
        self.url = self._wait_until_ready()
        self.address = ("127.0.0.1", int(self.url.rpartition(":")[2]))
        threading.Thread(target=self._keep_reading, daemon=True).start()

    @property
    def log(self) -> str:
        return "".join(self._lines[-200:])

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    def _wait_until_ready(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found:
                return found[0]
        raise SystemExit(f"the server did not start:\n{self.log}")

    def _keep_reading(self) -> None:
        assert self._process.stdout is not None
        self._lines.extend(iter(self._process.stdout.readline, ""))


@contextmanager
def serving(model: str) -> Iterator[Server]:
    server = Server(model)
    try:
        yield server
    finally:
        server.stop()


def fuzz_operations(server: Server, num_requests: int, report: Report) -> None:
    """Sends at least `num_requests`, shared out among the operations of the OpenAPI document."""
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in document.get_all_operations()]
    with_body = [operation for operation in operations if operation.body]
    shares = {True: num_requests * SHARE_WITH_BODY / len(with_body)}
    shares[False] = num_requests * (1 - SHARE_WITH_BODY) / (len(operations) - len(with_body))
    for operation in operations:
        fuzz_operation(server, operation, int(shares[operation in with_body]) + 1, report)


def fuzz_operation(server: Server, operation: APIOperation[Any, Any, Any], count: int, report: Report) -> None:
    name = f"{operation.method.upper()} {operation.path}"
    phases = [Phase.generate]
    rng = random.Random()

    @settings(max_examples=50, deadline=None, database=None, phases=phases, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def send(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and rng.random() < 0.7:
            put_right(case.body, rng)
            if "completions" in operation.path:
                cut_short(case.body, rng)
        if "name" in case.path_parameters and rng.random() < 0.5:
            case.path_parameters["name"] = MODEL
        answer(server, name, case, report)

    while report.statuses.get(name, Counter()).total() < count:
        send()


def put_right(body: dict[str, Any], rng: random.Random) -> None:
    """So that more than the first checks is reached."""
    body["model"] = MODEL
    if "tokens" in body:
        return
    asked = rng.choice([name for name in ("messages", "prompt") if name in body] or ["prompt"])
    kept = {"model", asked, *rng.sample(sorted(body), rng.randint(0, min(3, len(body))))}
    for name in set(body) - kept:  # an arbitrary value is most often wrong: few are kept
        del body[name]
    if asked == "messages" and rng.random() < 0.8:
        body["messages"] = [{"role": "user", "content": "Say something."}]


def cut_short(body: dict[str, Any], rng: random.Random) -> None:
    body["max_tokens"] = rng.randint(1, LONGEST_ANSWER)


def answer(server: Server, name: str, case: schemathesis.Case, report: Report) -> None:
    try:
        response = case.call(base_url=server.url, timeout=120)
    except Exception as error:
        report.faults.append(f"{name}: no answer: {error!r}\n{case.as_curl_command()[:2000]}")
        if not server.runs:
            raise SystemExit(f"{report.faults[-1]}\nthe server has ended:\n{server.log}") from error
        return
    report.count(name, response.status_code)
    if response.status_code >= 500:
        report.faults.append(
            f"{name}: {response.status_code} {response.content[:300]!r}\n{case.as_curl_command()[:2000]}"
        )


def fuzz_streams(server: Server, num_streams: int, report: Report) -> None:
    """Streams whose readers leave after a random number of bytes, several at once."""
    numbers = iter(range(num_streams))
    lock = threading.Lock()

    def visit() -> None:
        rng = random.Random()
        while True:
            with lock:
                if next(numbers, None) is None:
                    return
            try:
                read_a_little(server, rng)
            except OSError as error:
                report.faults.append(f"a stream could not be had: {error!r}")

    visitors = [threading.Thread(target=visit) for _ in range(REQUESTS_AT_ONCE)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()


def read_a_little(server: Server, rng: random.Random) -> None:
    body = json.dumps(a_stream(rng)).encode()
    path = "/v1/chat/completions" if b'"messages"' in body else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        left = rng.choice([0, rng.randint(1, 500), rng.randint(1, 20_000)])
        while left > 0:
            received = connection.recv(left)
            if not received:
                return
            left -= len(received)
        time.sleep(rng.random() * 0.02)


def a_stream(rng: random.Random) -> dict[str, Any]:
    words = " ".join(rng.choices(["river", "stone", "bird", "cloud"], k=rng.randint(1, 200)))
    prompt = rng.choice([{"prompt": words}, {"messages": [{"role": "user", "content": words}]}])
    form = rng.choice(
        [{}, {}, {"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "[a-z ]*"}}]
    )
    fields = {"model": MODEL, "stream": True, "n": rng.randint(1, 3), "max_tokens": rng.randint(1, 100)}
    return {**fields, **prompt, **form, "ignore_eos": rng.random() < 0.5}


def check_nothing_is_left(server: Server, report: Report) -> None:
    """Within some seconds nothing may run or wait, and no block may be in use."""
    status, _ = server.get("/ready")
    if status != 200:
        report.faults.append(f"/ready answers {status}")
    left = eventually_none(lambda: {name: value for name, value in held(server).items() if value})
    if left:
        report.faults.append(f"left behind: {left}")


def held(server: Server) -> dict[str, float]:
    load = json.loads(server.get("/load")[1])
    page = server.get("/metrics")[1].decode()
    gauges = dict(
        re.findall(r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{.*\} (\S+)$", page, re.M)
    )
    return {**load, **{f"/metrics {name}": float(value) for name, value in gauges.items()}}


def eventually_none(look: Callable[[], dict[str, float]]) -> dict[str, float]:
    deadline = time.monotonic() + 10
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--requests", type=int, default=5000, help="made up from the OpenAPI document (default 5000)")
    parser.add_argument("--streams", type=int, default=500, help="broken off anywhere (default 500)")
    arguments = parser.parse_args()
    report = Report()
    with serving(arguments.model) as server:
        fuzz_operations(server, arguments.requests, report)
        print(report, flush=True)
        check_nothing_is_left(server, report)
        fuzz_streams(server, arguments.streams, report)
        check_nothing_is_left(server, report)
        print(f"{arguments.streams} streams broken off; held afterwards: {held(server)}")
        errors = server.log.count("Traceback")
    if errors:
        report.faults.append(f"{errors} tracebacks in the server's log:\n{server.log}")
    for fault in report.faults[:20]:
        print(f"FAULT {fault}", file=sys.stderr)
    if report.faults:
        raise SystemExit(f"{len(report.faults)} faults")


if __name__ == "__main__":
    main()
