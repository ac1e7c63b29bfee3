"""The server as a process: what it says, how it stops, with what exit code."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time

import pytest

from octavo.errors import ConfigError
from octavo.server.listen import bind, url_of
from tests.server.live import eventually
from tests.server.process import ServerProcess, server_process

ALPHABET = "tests.server.alphabet_server"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
ENDLESS = {"model": "alphabet", "prompt": "a", "ignore_eos": True}


class Client(threading.Thread):
    """Sends one request and keeps what came back."""

    def __init__(self, server: ServerProcess, **fields: object) -> None:
        super().__init__()
        self._server = server
        self._body = ENDLESS | fields
        self.status = 0
        self.body = b""
        self.start()

    def run(self) -> None:
        self.status, self.body = self._server.request("POST", "/v1/completions", self._body)


def ask_in_vain(server: ServerProcess) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        server.request("POST", "/v1/completions", ENDLESS)


def running(server: ServerProcess) -> float:
    page = server.request("GET", "/metrics")[1].decode()
    return next(float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:num_requests_running{"))


def refusal(connection: socket.socket) -> tuple[int, str]:
    """Status and code of an OpenAI error, after which the connection must be closed."""
    answer = b""
    while part := connection.recv(1000):
        answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def test_a_head_without_end_is_cut_off() -> None:
    """uvicorn itself would keep it all."""
    with server_process(ALPHABET) as server:
        for beginning in (b"GET /", b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: "):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(beginning)
                with pytest.raises(OSError):
                    for _ in range(1000):
                        connection.sendall(b"a" * 2**16)
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 70_000)
            assert refusal(connection) == (400, "invalid_http")
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(b"HELLO\r\n\r\n")
            assert refusal(connection) == (400, "invalid_http")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for _ in range(5):  # the limit is of each request, not of a connection
            connection.request("GET", "/health", headers={"X-Long": "a" * 30_000})
            response = connection.getresponse()
            assert response.status == 200 and response.read()
        connection.close()


def test_what_follows_a_body_without_end_is_cut_off() -> None:
    """Trailers and extensions of chunks bring a request no further, and uvicorn would take them for ever."""
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    with server_process(ALPHABET) as server:
        for beginning in (b"2\r\n{}\r\n0\r\nX-Long: ", b"2\r\n{}\r\n2;extension="):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(head + beginning)
                with pytest.raises(OSError):
                    for _ in range(1000):
                        connection.sendall(b"a" * 2**16)
        body = json.dumps({"model": "alphabet", "prompt": "w" * 200}).encode()
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)  # more framing than body is no crime
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(head + chunks + b"0\r\nX-Short: 1\r\n\r\n")
            assert b"200" in connection.recv(1000).splitlines()[0]


def test_a_request_that_never_arrives_is_given_up() -> None:
    with server_process(ALPHABET, "--receive-timeout", "0.3") as server:
        whole = b"GET /health HTTP/1.1\r\nHost: x\r\n"
        upload = POST + b"Content-Length: 99\r\n\r\n{"
        for part in (b"", whole, upload):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(part)
                assert refusal(connection) == (408, "request_timeout")
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            for _ in range(2):
                connection.sendall(whole + b"\r\n")
                answer = b""
                while not answer.endswith(b"}"):
                    answer += connection.recv(1000)
                assert b"200" in answer.splitlines()[0]
                time.sleep(0.5)  # an idle connection is not a slow request


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(number: signal.Signals) -> None:
    with server_process(ALPHABET, "--step-s", "0.01") as server:
        plain, stream = Client(server, max_tokens=60), Client(server, max_tokens=60, stream=True)
        eventually(lambda: running(server) == 2)
        server.process.send_signal(number)
        eventually(lambda: server.request("GET", "/health")[0] == 503)
        status, body = server.request("POST", "/v1/completions", ENDLESS)
        assert (status, json.loads(body)["error"]["code"]) == (503, "shutting_down")
        plain.join()
        stream.join()
        assert server.wait() == 0
    assert plain.status == stream.status == 200
    assert json.loads(plain.body)["usage"]["completion_tokens"] == 60
    assert stream.body.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in stream.body
    assert server.lines[-1].endswith("stopped\n")


def test_after_the_timeout_requests_are_aborted() -> None:
    with server_process(ALPHABET, "--step-s", "0.01", "--shutdown-timeout", "0.2") as server:
        plain, stream = Client(server, max_tokens=200), Client(server, max_tokens=200, stream=True)
        eventually(lambda: running(server) == 2)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0
        plain.join()
        stream.join()
    assert (plain.status, json.loads(plain.body)["error"]["code"]) == (503, "shutting_down")
    *_, error, done, _ = stream.body.split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "shutting_down"
    assert done == b"data: [DONE]"


def test_a_second_interrupt_stops_at_once() -> None:
    with server_process(ALPHABET, "--step-s", "0.05") as server:
        client = threading.Thread(target=ask_in_vain, args=(server,))
        client.start()
        eventually(lambda: running(server) == 1)
        server.process.send_signal(signal.SIGINT)
        eventually(lambda: server.request("GET", "/health")[0] == 503)
        began = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 130
        assert time.monotonic() - began < 2
        client.join()


def test_an_idle_server_stops_at_once_whatever_connections_are_open() -> None:
    with server_process(ALPHABET) as server, socket.create_connection(("127.0.0.1", server.port)) as idle:
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(15) == b"HTTP/1.1 200 OK"
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert time.monotonic() - began < 3


def test_a_broken_engine_ends_the_process_after_saying_503() -> None:
    with server_process(ALPHABET, "--failures", "1000000") as server:
        for _ in range(3):
            server.request("POST", "/v1/completions", ENDLESS)
        assert server.request("GET", "/health")[0] == 503
        assert server.wait() == 1
    assert "engine" in server.lines[-1] or "stopped" in server.lines[-1]


def test_the_start_up_block_says_what_was_decided() -> None:
    with server_process(ALPHABET) as server:
        text = server.output
    for part in ("alphabet", "scalar", "1 thread", "4,096 tokens = 16.0 requests", "256 tokens a request", "int8"):
        assert part in text
    with server_process(ALPHABET, "--log-format", "json") as server:
        ready = json.loads(server.lines[0])
        assert ready["event"] == "ready" and ready["url"].endswith(str(server.port))
        assert (ready["kv_cache_tokens"], ready["max_concurrency"], ready["isa"]) == (4096, 16.0, "scalar")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    assert all(json.loads(line)["level"] for line in server.lines)


def test_activity_is_logged_while_there_is_some() -> None:
    with server_process(ALPHABET, "--log-format", "json", "--log-stats-interval", "0.2") as server:
        assert len(server.lines) == 1
        server.request("POST", "/v1/completions", ENDLESS)
        eventually(lambda: len(server.lines) > 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    activities = [line for line in map(json.loads, server.lines) if line.get("event") == "activity"]
    assert len(activities) <= 2, "a request of 16 tokens cannot last longer"
    assert sum(line["generation_tokens_per_s"] for line in activities) * 0.2 == pytest.approx(16)
    assert activities[-1]["num_running"] == 0


def test_a_taken_port_is_named_and_another_proposed() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} of 127\.0\.0\.1 is in use.*--port (\d+) is free"):
            bind("127.0.0.1", port)


def test_hosts() -> None:
    with bind("localhost", 0) as bound:
        assert url_of(bound).startswith("http://127.0.0.1:")
    with pytest.raises(ConfigError, match=r"--host no-such-host\.invalid"):
        bind("no-such-host.invalid", 0)
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        bind("192.0.2.1", 0)
