"""Kind 7: the server. The reports are listed in docs/cases.md."""

from __future__ import annotations

import gc
import http.client
import json
import socket
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.metrics.totals import EngineTotals
from octavo.server.api_keys import numbered_keys
from octavo.server.chat_wire import ChatRequest
from octavo.server.completion_wire import CompletionRequest
from octavo.server.settings import CrossOrigin, ServerSettings
from tests.cases.models import ask
from tests.server.fakes import FakeEngine
from tests.server.live import Answer, Server, eventually, serving
from tests.server.test_disconnects import ENDLESS, post

GOOD = {"model": "model", "prompt": "Hello", "max_tokens": 1}


@pytest.mark.case("SRV-02")
def test_content_types(smollm2: Server) -> None:
    def status(content_type: str | None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", smollm2.port, timeout=20)
        headers = {} if content_type is None else {"Content-Type": content_type}
        connection.request("POST", "/v1/completions", json.dumps(GOOD), headers)
        response = connection.getresponse()
        content = json.loads(response.read())
        connection.close()
        assert response.status == 200 or content["error"]["code"] == "unsupported_media_type"
        return response.status

    for content_type in ("application/json; charset=utf-8", "APPLICATION/JSON", "Application/Json;charset=UTF-8"):
        assert status(content_type) == 200, content_type
    for content_type in (None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ";", "é"):
        assert status(content_type) == 415, content_type


@pytest.mark.case("SRV-05")
def test_browsers_may_ask_before_they_call() -> None:
    totals = EngineTotals()
    origin = {"Origin": "https://a.example"}
    settings = ServerSettings(("alphabet",), api_keys=numbered_keys(["secret"]), cors=CrossOrigin(("*",)))
    with serving(FakeEngine(totals).async_engine(), settings, totals) as server:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        preflight = server.request("OPTIONS", "/v1/chat/completions", headers=origin | asked)
        assert preflight.status == 200 and "POST" in preflight.headers["access-control-allow-methods"]
        good = {"model": "alphabet", "prompt": "w"}
        authorised = origin | {"Authorization": "Bearer secret"}
        for body, headers, status in ((good, origin, 401), ({}, authorised, 400), (good, authorised, 200)):
            answer = server.request("POST", "/v1/completions", body, headers)
            assert answer.status == status and answer.headers["access-control-allow-origin"], status


@pytest.mark.case("SRV-06")
def test_errors_are_those_of_the_client_library(smollm2: Server, client: openai.OpenAI) -> None:
    for name in ("unknown", "", "x" * 10_000):
        with pytest.raises(openai.NotFoundError) as unknown:
            client.completions.create(model=name, prompt="a")
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        assert len(unknown.value.message) < 1000
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=None, prompt="a")  # type: ignore[call-overload]
    missing = smollm2.request("POST", "/v1/completions", {"prompt": "a"})
    assert (missing.status, missing.error["param"]) == (400, "model")
    for method, path, status in (("GET", "/v1/none", 404), ("GET", "/v1/completions", 405), ("PATCH", "/health", 405)):
        answer = smollm2.request(method, path)
        assert answer.status == status and answer.error["type"] == "invalid_request_error"


def counted(server: Server, reason: str) -> float:
    return server.metric("vllm:request_success_total", finished_reason=reason)


def abort_streams(server: Server, count: int) -> None:
    """Streams that are left after their first chunk."""
    connections = [
        post(server, "/v1/completions", {"prompt": f"a{i}", "stream": True, **ENDLESS}) for i in range(count)
    ]
    for connection in connections:
        while b"data: " not in connection.recv(4096):
            pass
        connection.close()
    eventually(lambda: server.engine.num_unfinished == 0)


@pytest.mark.case("SRV-07", "SRV-08")
def test_what_was_finished_aborted_and_failed_is_counted(server: Server, fake: FakeEngine) -> None:
    fake.executor.step_s = 0.002
    abort_streams(server, 5)
    answers = [server.complete(prompt) for prompt in ("w", "u", "t")]
    tokens = sum(answer.json["usage"]["completion_tokens"] for answer in answers)
    assert server.metric("vllm:generation_tokens_total") == server.metric("vllm:request_generation_tokens_sum")
    assert server.metric("vllm:request_generation_tokens_sum") >= tokens + 5
    computed, known = server.metric("vllm:prompt_tokens_total"), server.metric("vllm:prefix_cache_hits_total")
    assert computed + known == server.metric("vllm:request_prompt_tokens_sum") == 5 * 2 + 3
    for _ in range(2):
        fake.executor.failures = 1
        assert server.complete("w").status == 500
    assert [counted(server, reason) for reason in ("stop", "abort", "error")] == [3, 5, 2]
    assert server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0


@pytest.mark.case("SRV-09")
def test_a_request_is_counted_once_and_its_answers_each(server: Server) -> None:
    """Two prompts are two requests; of one with n = 3 the three answers end, and it is one that asked for three."""
    server.complete("w", n=3)
    server.complete(["u", "t"])
    assert counted(server, "stop") == 3 + 2
    assert server.metric("vllm:request_params_n_count") == 1 + 2
    assert server.metric("vllm:request_params_n_sum") == 3 + 2
    assert server.metric("vllm:request_prompt_tokens_count") == 1 + 2
    for each_answer in ("request_generation_tokens", "e2e_request_latency_seconds", "time_to_first_token_seconds"):
        assert server.metric(f"vllm:{each_answer}_count") == 3 + 2
    assert server.metric("http_requests_total", handler="/v1/completions") == 2


JUNK = [None, True, 0, -1, 1e308, "", "x", [], {}, [[]], "y" * 1_000_000]
FIELDS = [("chat", name) for name in ChatRequest.model_fields] + [
    ("completion", name) for name in CompletionRequest.model_fields
]


@pytest.mark.case("SRV-11")
@pytest.mark.parametrize("value", JUNK, ids=lambda value: json.dumps(value)[:8])
def test_any_value_in_any_field(smollm2: Server, value: object) -> None:
    for endpoint, field in FIELDS:
        if endpoint == "chat":
            body = {"model": "model", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 1}
            answer = smollm2.request("POST", "/v1/chat/completions", {**body, "max_tokens": 1, field: value})
        else:
            answer = smollm2.request("POST", "/v1/completions", {**GOOD, field: value})
        expected = (200, 400, 404) if field == "model" else (200, 400)
        assert answer.status in expected, (field, answer.body[:500])
        assert answer.status == 200 or answer.error["param"], field
    nested: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "a", name: value}]}
        for name in ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
    ]
    nested += [{"messages": [value]}, {"stream_options": {"include_usage": value}, "stream": True}]
    nested += [{"response_format": {"type": value}}, {"response_format": {"type": "json_schema", "json_schema": value}}]
    nested += [{"tools": [value]}, {"tools": [{"type": "function", "function": value}]}, {"logit_bias": {"5": value}}]
    for fields in nested:
        body = {"model": "model", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 1, **fields}
        answer = smollm2.request("POST", "/v1/chat/completions", body)
        assert answer.status in (200, 400), (fields, answer.body[:500])
    assert ask(smollm2, "completion", max_tokens=1).status == 200


@pytest.mark.case("SRV-12")
def test_bytes_that_are_no_utf_8(smollm2: Server) -> None:
    def send(content: bytes, model: bytes = b"model") -> Answer:
        return smollm2.request(
            "POST", "/v1/completions", b'{"model":"' + model + b'","prompt":"' + content + b'","max_tokens":1}'
        )

    for broken in (
        "größe".encode("latin-1"),
        "中文".encode("gbk"),
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"a\x00b",
    ):
        answer = send(broken)
        assert answer.status == 400 and answer.error["code"] == "invalid_json", broken
        assert send(b"a", broken).status == 400
    assert send(rb"a\u0000b").status == 200, "an escaped NUL is a character as any other"
    answer = send(b"a", r"mödel\u0000".encode())
    assert answer.status == 404 and "mödel" in answer.error["message"]


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.case("SRV-14")
def test_nothing_is_left_of_a_thousand_requests(server: Server, fake: FakeEngine) -> None:
    def serve(count: int) -> None:
        for number in range(count):
            if number % 50 == 0:
                abort_streams(server, 2)
            if number % 50 == 25:
                fake.executor.failures = 1
            server.complete("w", n=2, max_tokens=2)

    serve(400)
    before = resident_bytes()
    serve(1000)
    assert resident_bytes() - before < 4e6
    assert server.engine.num_unfinished == 0
    assert fake.pool.num_used == 0


@pytest.mark.case("SRV-15")
def test_request_ids_are_short_and_plain(smollm2: Server) -> None:
    for given in ("", "x" * 129, "x" * 30_000, 'a"}\\n\\ndata: [DONE]', "a\\r\\nb", "ü"):
        answer = smollm2.request("POST", "/v1/completions", {**GOOD, "stream": True}, {"X-Request-Id": given})
        assert answer.status == 200 and answer.headers["x-request-id"].startswith("req-")
        assert all(event["id"].startswith("cmpl-") and len(event["id"]) < 50 for event in answer.events)
    with socket.create_connection(("127.0.0.1", smollm2.port), timeout=10) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + b"x" * 70_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
