"""A client that leaves stops costing anything within one step."""

from __future__ import annotations

import json
import random
import socket
import threading

import pytest

from tests.server.fakes import FakeEngine
from tests.server.live import Server, eventually


def post(server: Server, path: str, body: dict) -> socket.socket:
    """Sends a request and returns its socket, nothing read."""
    raw = json.dumps({"model": "alphabet", **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(head.encode() + raw)
    return connection


def is_idle(server: Server, fake: FakeEngine) -> bool:
    return server.engine.num_unfinished == 0 and fake.pool.num_used == 0


ENDLESS = {"ignore_eos": True, "max_tokens": 10**6}
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], **ENDLESS})
COMPLETIONS = ("/v1/completions", {"prompt": ["a", "b", "c"], **ENDLESS})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [CHAT, COMPLETIONS])
def test_leaving_aborts_within_a_step(server: Server, fake: FakeEngine, path: str, body: dict, stream: bool) -> None:
    num_choices = len(body.get("prompt", [1]))
    fake.executor.step_s = 0.05
    connection = post(server, path, {**body, "stream": stream})
    eventually(lambda: server.engine.num_unfinished == num_choices and fake.pool.num_used > 0)
    if stream:
        assert connection.recv(1)
    before = server.totals.step_tokens.cumulative()[-1]
    connection.close()
    eventually(lambda: is_idle(server, fake))
    # The step under way, one that had begun to be decided, and as many as the loop needed to hear of it.
    assert server.totals.step_tokens.cumulative()[-1] - before <= 4
    assert server.totals.finished["abort"] == num_choices
    assert server.metric("vllm:num_requests_running") == 0
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    assert server.metric("vllm:request_success_total", finished_reason="abort") == num_choices
    assert server.complete("w").json["choices"][0]["text"] == "xyz"


def test_leaving_while_waiting_for_a_row(server: Server, fake: FakeEngine) -> None:
    """More requests than rows; those that wait can leave too."""
    fake.executor.step_s = 0.01
    connections = [post(server, *CHAT) for _ in range(12)]
    eventually(lambda: server.totals.num_running == 8 and server.totals.num_waiting == 4)
    for connection in connections[8:]:
        connection.close()
    eventually(lambda: server.totals.num_waiting == 0 and server.engine.num_unfinished == 8)
    for connection in connections[:8]:
        connection.close()
    eventually(lambda: is_idle(server, fake))


def test_a_reader_that_does_not_read_holds_up_nobody(server: Server, fake: FakeEngine) -> None:
    connection = post(server, CHAT[0], {**CHAT[1], "stream": True})
    assert server.chat("w").json["choices"][0]["message"]["content"] == "xyz"
    connection.close()
    eventually(lambda: is_idle(server, fake))


def test_leaving_at_random_leaks_nothing(server: Server, fake: FakeEngine) -> None:
    fake.executor.step_s = 0.001

    def visit(seed: int) -> None:
        rng = random.Random(seed)
        path, body = rng.choice([CHAT, COMPLETIONS])
        connection = post(server, path, {**body, "max_tokens": rng.randrange(1, 30), "stream": rng.random() < 0.7})
        for _ in range(rng.randrange(4)):
            if not connection.recv(rng.randrange(1, 2000)):
                break
        connection.close()

    for start in range(0, 36, 12):
        visitors = [threading.Thread(target=visit, args=(seed,)) for seed in range(start, start + 12)]
        for visitor in visitors:
            visitor.start()
        for visitor in visitors:
            visitor.join()
    eventually(lambda: is_idle(server, fake))
    eventually(lambda: server.totals.num_running == 0)
    assert server.chat("w").json["choices"][0]["message"]["content"] == "xyz"


def test_leaving_before_the_body_is_complete_is_the_clients_affair(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    for sent in (head, head + b'{"model": "alph'):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(sent)
    counted = b'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 2.0'
    eventually(lambda: counted in server.request("GET", "/metrics").body)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
