"""Anything a client may send or do: no answer is a server error, and nothing is left behind."""

from __future__ import annotations

import json
import random
import socket
import time
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.server.chat_wire import ChatRequest
from octavo.server.completion_wire import CompletionRequest
from tests.server.fakes import FakeEngine
from tests.server.live import Server, eventually

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(-3, 3) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
# Values that are often right, so that many bodies get as far as the engine.
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, 5),
    "max_completion_tokens": st.integers(1, 5),
    "n": st.integers(1, 3),
    "stream": st.booleans(),
    "logprobs": st.booleans() | st.integers(0, 5),
    "top_logprobs": st.integers(0, 5),
    "prompt_logprobs": st.integers(0, 5),
    "logit_bias": st.dictionaries(st.integers(0, 256).map(str), st.integers(-100, 100), max_size=3),
    "stop": st.text(max_size=3) | st.lists(st.text(min_size=1, max_size=3), max_size=3),
    "bad_words": st.lists(st.text(max_size=3), max_size=3),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "suffix": st.text(max_size=3),
    "echo": st.booleans(),
    "truncate_prompt_tokens": st.integers(-1, 5),
    "presence_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0, 2),
    "use_beam_search": st.booleans(),
    "continue_final_message": st.booleans(),
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}]),
}


def bodies(model: Any, required: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = sorted(set(model.model_fields) - set(required) - {"model"})
    fields = {name: st.one_of(likely, likely, JSON) for name in names for likely in [LIKELY.get(name, st.none())]}
    chosen = st.lists(st.sampled_from(names), max_size=6, unique=True)
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries(
            {"model": st.just("alphabet"), **required, **{name: fields[name] for name in names}}
        )
    )


CHAT = bodies(
    ChatRequest,
    {
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": st.text(max_size=5)}
            ),
            min_size=1,
            max_size=3,
        )
    },
)
PROMPTS = st.text(min_size=1, max_size=5) | st.lists(st.integers(0, 256), min_size=1, max_size=5)
COMPLETION = bodies(CompletionRequest, {"prompt": PROMPTS})
FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def check(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = server.request("POST", path, body)
    assert answer.status in (200, 400), (body, answer.body)
    if answer.status == 400:
        assert answer.error["message"]
    elif body.get("stream") is True:
        assert not [event for event in answer.events if "error" in event], (body, answer.body)


@FUZZ
@given(body=CHAT)
def test_no_chat_is_a_server_error(shared: Server, body: dict[str, Any]) -> None:
    check(shared, "/v1/chat/completions", body)


@FUZZ
@given(body=COMPLETION)
def test_no_completion_is_a_server_error(shared: Server, body: dict[str, Any]) -> None:
    check(shared, "/v1/completions", body)


def test_clients_that_leave_at_any_time_leave_nothing_behind(server: Server, fake: FakeEngine) -> None:
    """Streams with several answers, broken off after a random number of bytes, or before the first."""
    fake.executor.step_s = 0.001
    rng = random.Random()
    for _ in range(60):
        body = json.dumps(
            {"model": "alphabet", "prompt": "a" * rng.randint(1, 60), "stream": True, "n": rng.randint(1, 3),
             "ignore_eos": True, "logprobs": 2, "max_tokens": 100}
        ).encode()  # fmt: skip
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if rng.random() < 0.5:
                connection.recv(rng.randint(1, 3000))
            time.sleep(rng.random() * 0.01)
    eventually(lambda: server.engine.num_unfinished == 0)
    eventually(lambda: server.totals.num_running == server.totals.num_waiting == 0)
    eventually(lambda: server.totals.num_blocks_used == 0)
    assert server.chat("w").json["choices"][0]["message"]["content"] == "xyz"
