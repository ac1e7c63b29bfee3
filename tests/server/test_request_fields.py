"""What the fields of a request do, beyond the text of the answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest

from octavo.config import GenerationDefaults
from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Server, serving


def test_sampling_fields_reach_the_sampler(server: Server, fake: FakeEngine) -> None:
    asked = {
        "presence_penalty": 0.5, "frequency_penalty": -0.25, "repetition_penalty": 1.5, "top_k": 3, "min_p": 0.25,
        "allowed_token_ids": [120, 121, 122, 256], "min_tokens": 1, "temperature": 0.5, "top_p": 0.75, "seed": 7,
    }  # fmt: skip
    for ask in (server.chat, server.complete):
        assert ask(**asked, logit_bias={"97": -2, "98": 1.5}, bad_words=["ab"]).status == 200
        sampling = fake.executor.samplings[-1]
        for name, value in asked.items():
            found = getattr(sampling, name)
            assert (list(found) if isinstance(found, tuple) else found) == value
        assert sampling.logit_bias == {97: -2.0, 98: 1.5}
        assert fake.executor.bad_words[-1] == (tuple(b"ab"), tuple(b" ab"))


def test_prompts_are_truncated(server: Server) -> None:
    def prompt_of(**fields: object) -> str:
        answer = server.complete("abcdefgh", echo=True, max_tokens=1, **fields)
        assert answer.status == 200, answer.body
        text: str = answer.json["choices"][0]["text"]
        return text[:-1]

    assert prompt_of() == prompt_of(truncate_prompt_tokens=8) == prompt_of(truncate_prompt_tokens=-1) == "abcdefgh"
    assert prompt_of(truncate_prompt_tokens=3) == "fgh"
    assert prompt_of(truncate_prompt_tokens=3, truncation_side="right") == "abc"
    long = server.complete("ab" * 500, truncate_prompt_tokens=-1, max_tokens=6).json
    assert long["usage"]["prompt_tokens"] == 250
    assert server.chat("b" * 500, truncate_prompt_tokens=5).json["usage"]["prompt_tokens"] == 5


def test_token_ids_are_returned(server: Server) -> None:
    body = server.chat("y", return_token_ids=True).json
    assert body["prompt_token_ids"] == [*b">>y"] and body["choices"][0]["token_ids"] == [122, 256]
    events = server.chat("y", return_token_ids=True, stream=True).events
    assert events[0]["prompt_token_ids"] == [*b">>y"]
    assert [*chain.from_iterable(event["choices"][0].get("token_ids", []) for event in events)] == [122, 256]
    body = server.complete(["y", "x"], return_token_ids=True).json
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == [[121], [120]]
    assert [choice["token_ids"] for choice in body["choices"]] == [[122, 256], [121, 122, 256]]
    events = server.complete("y", return_token_ids=True, stream=True).events
    assert events[0]["choices"][0]["prompt_token_ids"] == [121]
    assert [*chain.from_iterable(event["choices"][0]["token_ids"] for event in events)] == [122, 256]


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
def test_usage_can_be_told_continuously(server: Server, endpoint: str) -> None:
    events = getattr(server, endpoint)(
        "v", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
    ).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == counts[-2] == 5 and events[-1]["choices"] == []


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
def test_a_stream_may_come_in_larger_pieces(server: Server, fake: FakeEngine, endpoint: str) -> None:
    """The first token at once, then so many together, and at the end what is left; nothing else changes."""

    fake.executor.step_s = 0.002

    def told(**fields: object) -> list[list[int]]:
        events = getattr(server, endpoint)("p", stream=True, return_token_ids=True, n=2, **fields).events
        texts = [""] * 2
        pieces: list[list[int]] = []
        for choice in (choice for event in events for choice in event["choices"]):
            texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            if choice["index"] == 0 and choice.get("token_ids"):
                pieces.append(choice["token_ids"])
        assert texts == ["qrstuvwxyz"] * 2
        return pieces

    assert sum(map(len, told())) == 11
    _, *pieces, last = told(stream_interval=4)
    assert pieces and all(len(piece) >= 4 for piece in pieces) and last
    assert len(told(stream_interval=100)) == 2
    assert getattr(server, endpoint)("p", stream_interval=4).status == 200
    assert getattr(server, endpoint)("p", stream_interval=0).error["param"] == "stream_interval"


def test_no_spaces_stand_between_special_tokens_anyway(server: Server) -> None:
    for value in (True, False):
        assert server.chat("w", spaces_between_special_tokens=value, skip_special_tokens=False).status == 200


def test_an_answer_may_continue_the_last_message(server: Server, fake: FakeEngine) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "w"}]
    body = {"model": "alphabet", "messages": messages, "continue_final_message": True}
    answer = server.request("POST", "/v1/chat/completions", body).json
    assert (answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]) == ("xyz", 2)
    answer = server.request("POST", "/v1/chat/completions", {**body, "echo": True}).json
    assert answer["choices"][0]["message"]["content"] == "wxyz"
    events = server.request("POST", "/v1/chat/completions", {**body, "echo": True, "stream": True}).events
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "wxyz"


def test_suffix_fills_the_gap(server: Server) -> None:
    """The fake's prompt for that is the suffix, a bar, the prefix."""
    answer = server.complete("w", suffix="end").json
    assert (answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]) == ("xyz", 5)
    assert server.complete([119], suffix="end").error["param"] == "suffix"


@pytest.fixture
def lenient() -> Iterator[tuple[Server, FakeEngine]]:
    totals = EngineTotals()
    fake = FakeEngine(totals, generation_defaults=GenerationDefaults({"temperature": 0.25, "top_k": 5}, 2))
    settings = ServerSettings(("alphabet",), strict_fields=False, trust_request_chat_template=True)
    with serving(fake.async_engine(), settings, totals) as running:
        yield running, fake


def test_unknown_fields_can_be_ignored_but_known_ones_are_still_refused(lenient: tuple[Server, FakeEngine]) -> None:
    server, _ = lenient
    assert server.chat(tempratur=1).status == 200
    messages = [{"role": "user", "content": [{"type": "text", "text": "w", "colour": 1}], "mood": "good"}]
    assert server.request("POST", "/v1/chat/completions", {"model": "alphabet", "messages": messages}).status == 200
    assert server.chat(store=True).error["param"] == "store"


def test_chat_templates_of_requests_are_taken_when_trusted(lenient: tuple[Server, FakeEngine]) -> None:
    server, _ = lenient
    assert server.chat("w", chat_template="12345").json["usage"]["prompt_tokens"] == 8


def test_the_model_s_defaults_hold_where_a_request_is_silent(lenient: tuple[Server, FakeEngine]) -> None:
    server, fake = lenient
    for ask in (server.chat, server.complete):
        assert ask("a", top_k=7).json["usage"]["completion_tokens"] == 2
        sampling = fake.executor.samplings[-1]
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.25, 7, 1.0)
    assert server.chat("a", max_tokens=3).json["usage"]["completion_tokens"] == 3
