"""Events on the wire, byte by byte."""

from __future__ import annotations

from tests.server.fakes import FakeEngine
from tests.server.live import Server, eventually


def test_chat_events(shared: Server) -> None:
    answer = shared.chat("w", stream=True)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    first, *content, last = answer.events
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert "".join(event["choices"][0]["delta"]["content"] for event in content) == "xyz"
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] == "stop"
    for event in (first, *content, last):
        assert "usage" not in event
        assert len(event["choices"]) == 1


def test_no_empty_deltas_while_a_stop_string_may_be_coming(shared: Server) -> None:
    answer = shared.chat("a", stream=True, stop=["defghijklmnopqrstu!"], max_tokens=20)
    _, *content, last = answer.events
    assert all(event["choices"][0]["delta"]["content"] for event in content)
    assert "".join(event["choices"][0]["delta"]["content"] for event in content) == "bcdefghijklmnopqrstu"
    assert last["choices"][0]["finish_reason"] == "length"


def test_completion_events_interleave(shared: Server) -> None:
    events = shared.complete(["a", "k", "y"], stream=True, stream_options={"include_usage": True}).events
    *chunks, usage = events
    texts = ["", "", ""]
    for chunk in chunks:
        assert chunk["usage"] is None and chunk["object"] == "text_completion"
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["bcdefghijklmnopq", "lmnopqrstuvwxyz", "z"]
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 3 and usage["usage"]["completion_tokens"] == 16 + 16 + 2


def test_line_separators_in_text_stay_inside_their_event(shared: Server) -> None:
    """Some clients take U+2028 and the like for the end of a line."""
    name = "\u2028\u0085\r\n"
    answer = shared.request("GET", "/v1/models/a%E2%80%A8b")
    assert answer.status == 404
    body = shared.complete(name + "w", stream=True).body
    assert body.isascii() and len(body.splitlines()) == 2 * body.count(b"data: ")


def test_an_error_in_a_stream_is_an_event(server: Server, fake: FakeEngine) -> None:
    fake.executor.failures = 1
    answer = server.chat("a", stream=True)
    assert answer.status == 200
    *_, last = answer.events
    assert set(last) == {"error"} and set(last["error"]) == {"message", "type", "param", "code"}
    assert last["error"]["code"] == "step_failed"
    assert b"secret internals" not in answer.body
    assert server.chat("w", stream=True).status == 200


def test_an_error_ends_all_choices(server: Server, fake: FakeEngine) -> None:
    fake.executor.failures = 1
    answer = server.complete(["a", "b"], stream=True)
    assert "error" in answer.events[-1]
    eventually(lambda: server.engine.num_unfinished == 0)
    assert fake.pool.num_used == 0
