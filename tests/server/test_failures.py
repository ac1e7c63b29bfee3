"""When something goes wrong: who is told what, and that everybody else goes on."""

from __future__ import annotations

import logging
import threading

import pytest

from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Server, serving


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/models/other/thing", 404, "model_not_found"),
    ],
)
def test_routes(shared: Server, method: str, path: str, status: int, code: str) -> None:
    answer = shared.request(method, path)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.error["type"] == "invalid_request_error"
    if status == 405:
        assert answer.headers["allow"]


def test_a_failed_step_is_a_500_without_internals(server: Server, fake: FakeEngine) -> None:
    fake.executor.failures = 1
    answer = server.chat("a")
    assert (answer.status, answer.error["type"], answer.error["code"]) == (500, "server_error", "step_failed")
    assert b"secret" not in answer.body
    assert server.chat("w").status == 200
    assert server.request("GET", "/health").status == 200


def test_an_unexpected_exception_is_a_500_without_internals(
    server: Server, fake: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret internals")

    fake.tokenizer.apply_chat_template = break_down  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.ERROR):
        answer = server.chat("a", stream=True)
    assert (answer.status, answer.error["type"], answer.error["code"]) == (500, "server_error", "internal_error")
    assert b"secret" not in answer.body and b"ZeroDivision" not in answer.body
    assert answer.headers["x-request-id"]
    assert "secret internals" in caplog.text
    assert server.complete("w").status == 200


def test_a_broken_engine_is_a_503(server: Server, fake: FakeEngine) -> None:
    fake.executor.failures = 10**6
    for _ in range(3):
        assert server.chat("a").status in (500, 503)
    answer = server.request("GET", "/health")
    assert (answer.status, answer.error["code"]) == (503, "engine_dead")
    answer = server.chat("a")
    assert (answer.status, answer.error["code"]) == (503, "engine_dead")
    assert server.request("GET", "/metrics").status == 200


def test_a_draining_server_is_a_503_to_be_retried(server: Server) -> None:
    server.service.draining = True
    for answer in (server.request("GET", "/health"), server.chat("a"), server.chat("a", stream=True)):
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        assert answer.headers["retry-after"] == "1"
    assert server.request("GET", "/v1/models").status == 200


def test_a_model_without_chat_template_says_so() -> None:
    totals = EngineTotals()
    fake = FakeEngine(totals, has_chat_template=False)
    with serving(fake.async_engine(), ServerSettings(("alphabet",)), totals) as server:
        answer = server.chat("a")
        assert (answer.status, answer.error["code"]) == (400, "chat_template_error")
        assert "no chat template" in answer.error["message"]
        assert server.complete("w").json["choices"][0]["text"] == "xyz"


def test_context_boundaries_are_exact(server: Server) -> None:
    """With 256 tokens of context: 255 of prompt leave one of answer, 256 leave none."""
    answer = server.complete("a" * 255, max_tokens=5)
    assert answer.json["usage"]["completion_tokens"] == 1
    assert answer.json["choices"][0]["finish_reason"] == "length"
    for length in (256, 257):
        answer = server.complete("a" * length, max_tokens=1)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert str(length) in answer.error["message"] and "256" in answer.error["message"]
    answer = server.chat("a" * 300)
    assert (answer.status, answer.error["param"]) == (400, "messages")


def test_prompts_are_logged_only_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for log_requests in (False, True):
            totals = EngineTotals()
            settings = ServerSettings(("alphabet",), log_requests=log_requests)
            with serving(FakeEngine(totals).async_engine(), settings, totals) as server:
                server.chat("a private matter")
                server.complete("another private matter")
            assert ("private matter" in caplog.text) is log_requests


def test_a_huge_prompt_holds_up_nobody(server: Server, fake: FakeEngine) -> None:
    """While one client's megabyte is being tokenised, the others are served."""
    began, go_on = threading.Event(), threading.Event()
    encode = fake.tokenizer.encode

    def encode_slowly(text: str, **kwargs: bool) -> list[int]:
        if len(text) > 5000:
            began.set()
            go_on.wait(10)
        return encode(text, **kwargs)

    fake.tokenizer.encode = encode_slowly  # type: ignore[method-assign]
    answers = []
    huge = "a" * (10**6 + 1)
    client = threading.Thread(
        target=lambda: answers.append(server.complete(huge, truncate_prompt_tokens=5, max_tokens=1))
    )
    client.start()
    assert began.wait(10)
    assert server.complete("w").json["choices"][0]["text"] == "xyz"
    go_on.set()
    client.join()
    assert answers[0].json["choices"][0]["text"] == "b"
