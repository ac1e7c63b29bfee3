"""Kind 1: streams, stop strings and text from tokens. The reports are listed in docs/cases.md."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.cases.models import QUESTION, ask, said
from tests.server.live import Server
from tests.server.test_reasoning import TEMPLATE, model

ENDPOINTS = pytest.mark.parametrize("endpoint", ["chat", "completion"])


def token_of(server: Server, content: bytes) -> int:
    """The token that stands for exactly these bytes."""
    tokenizer = server.engine.tokenizer
    return next(token_id for token_id in range(tokenizer.vocab_size) if tokenizer.token_bytes(token_id) == content)


def greedy_tokens(server: Server, endpoint: str, num_tokens: int = 24) -> tuple[str, list[int]]:
    """The text of a greedy answer and its tokens."""
    choice = ask(server, endpoint, temperature=0, max_tokens=num_tokens, return_token_ids=True).json["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"], choice["token_ids"]


@pytest.mark.case("STR-02")
@ENDPOINTS
def test_a_stop_string_lies_inside_a_token(smollm2: Server, endpoint: str) -> None:
    text, token_ids = greedy_tokens(smollm2, endpoint)
    decode = smollm2.engine.tokenizer.decode
    word = next(word for word in map(decode, ([t] for t in token_ids)) if len(word) >= 5 and word.strip().isalpha())
    stop = word.strip()[1:3]
    answer = said(smollm2, endpoint, max_tokens=24, stop=stop)
    assert (answer.text, answer.finish_reason, answer.stop_reason) == (text[: text.index(stop)], "stop", stop)
    assert answer.num_tokens == next(n for n in range(25) if stop in decode(token_ids[:n]))


@pytest.mark.case("STR-05")
@ENDPOINTS
@pytest.mark.parametrize("stream", [False, True])
def test_bytes_that_are_no_text(smollm2: Server, endpoint: str, stream: bool) -> None:
    byte = token_of(smollm2, b"\xf0")
    logprobs = {"logprobs": True, "top_logprobs": 1} if endpoint == "chat" else {"logprobs": 1}
    answer = ask(smollm2, endpoint, stream=stream, temperature=0, max_tokens=3, logit_bias={str(byte): 100}, **logprobs)
    choices = [event["choices"][0] for event in answer.events] if stream else answer.json["choices"]
    text = "".join(
        choice.get("text") or (choice.get("message") or choice.get("delta", {})).get("content") or ""
        for choice in choices
    )
    assert text == "\ufffd" * 3
    entries = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    if endpoint == "chat":
        assert [token["bytes"] for entry in entries for token in entry["content"]] == [[0xF0]] * 3
    else:
        assert [token for entry in entries for token in entry["tokens"]] == [r"bytes:\xf0"] * 3
    assert said(smollm2, endpoint, max_tokens=4).text, "later requests work"


@pytest.mark.case("STR-06")
def test_no_chunk_is_empty_while_a_stop_string_could_begin(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    whole = client.chat.completions.create(**fields, max_tokens=12).choices[0].message.content
    chunks = list(client.chat.completions.create(**fields, max_tokens=12, stop="#" * 20, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == "length"
    texts = [chunk.choices[0].delta.content for chunk in chunks[1:-1]]
    assert all(texts) and "".join(filter(None, texts)) == whole


@pytest.mark.case("STR-07")
def test_leading_blanks_are_kept(smollm2: Server) -> None:
    decode = smollm2.engine.tokenizer.decode
    fields: dict[str, Any] = {"max_tokens": 2}
    blank = {str(token_of(smollm2, b" ")): 100}
    for beginning, bias in ((" P", {}), ("  ", {"logit_bias": blank})):
        choice = ask(smollm2, "completion", temperature=0, return_token_ids=True, **fields, **bias).json["choices"][0]
        text = said(smollm2, "completion", **fields, **bias).text
        assert text == decode(choice["token_ids"]) and text.startswith(beginning)


@pytest.mark.case("STR-09")
@ENDPOINTS
def test_usage_comes_once_at_the_end_and_counts_all_choices(smollm2: Server, endpoint: str) -> None:
    options = {"include_usage": True}
    *events, last = ask(
        smollm2, endpoint, stream=True, stream_options=options, n=2, max_tokens=8, ignore_eos=True
    ).events
    assert all(event["usage"] is None for event in events)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 16


@pytest.mark.case("STR-10")
@pytest.mark.parametrize("skip", [True, False])
def test_stop_tokens_cut_nothing_else(smollm2: Server, skip: bool) -> None:
    """A special token that ends a turn by itself ends it too when it is asked for; so does an ordinary word."""
    end = smollm2.engine.tokenizer.encode("<|im_end|>")[0]
    fields: dict[str, Any] = {"content": "Say hello.", "max_tokens": 200, "skip_special_tokens": skip}
    natural = said(smollm2, "chat", **fields)
    assert natural.finish_reason == "stop" and natural.stop_reason is None
    asked = said(smollm2, "chat", stop_token_ids=[end], ignore_eos=True, **fields)
    assert (asked.text, asked.finish_reason, asked.stop_reason) == (natural.text, "stop", end)

    _, token_ids = greedy_tokens(smollm2, "chat")
    word = token_ids[9]
    ordinary = said(smollm2, "chat", stop_token_ids=[word], max_tokens=24, skip_special_tokens=skip)
    assert ordinary.text == smollm2.engine.tokenizer.decode(token_ids[: token_ids.index(word)])
    assert (ordinary.finish_reason, ordinary.stop_reason) == ("stop", word)


@pytest.mark.case("STR-12")
def test_empty_stop_strings(smollm2: Server) -> None:
    for stop in ([""], ["", "END"], ""):
        refused = smollm2.chat(stop=stop)
        assert (refused.status, refused.error["param"]) == (400, "stop")
    free = said(smollm2, "chat", max_tokens=6)
    assert said(smollm2, "chat", max_tokens=6, stop=[]) == said(smollm2, "chat", max_tokens=6, stop=None) == free
    assert free.num_tokens == 6


@pytest.mark.case("STR-13", "STR-17")
@pytest.mark.parametrize(("max_tokens", "reason"), [(200, "stop"), (3, "length")])
def test_the_chunks_of_a_chat_are_as_documented(smollm2: Server, max_tokens: int, reason: str) -> None:
    answer = ask(smollm2, "chat", content="Say hello.", stream=True, temperature=0, max_tokens=max_tokens)
    chunks = [ChatCompletionChunk.model_validate(event, strict=True) for event in answer.events]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [reason]
    roles = [chunk.choices[0].delta.role for chunk in chunks]
    assert roles == ["assistant"] + [None] * (len(chunks) - 1)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


@pytest.mark.case("STR-13")
def test_each_choice_ends_once(smollm2: Server) -> None:
    events = ask(smollm2, "chat", content="Say hello.", stream=True, n=3, max_tokens=60, seed=1).events
    ended = [choice["index"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.case("STR-15")
def test_a_stream_with_log_probabilities_says_why_it_ended(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="model", messages=[{"role": "user", "content": QUESTION}], stream=True, logprobs=True, top_logprobs=1,
            max_tokens=5, stream_options={"include_usage": True},
        )
    )  # fmt: skip
    *chunks, last = chunks
    assert chunks[-1].choices[0].finish_reason == "length"
    entries = [chunk.choices[0].logprobs.content or [] for chunk in chunks if chunk.choices[0].logprobs is not None]
    assert last.usage is not None and sum(map(len, entries)) == last.usage.completion_tokens == 5


@pytest.mark.case("STR-16")
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_are_those_of_the_answer_not_of_its_reasoning(stream: bool) -> None:
    with model(TEMPLATE, "<think>\nPerhaps Answer: 3.\n</think>\n\nIt is Answer: 4.") as server:
        answer = server.chat(stop=["Answer:"], stream=stream)
        choices = [event["choices"][0] for event in answer.events] if stream else answer.json["choices"]
        parts = [choice["delta" if stream else "message"] for choice in choices]
        assert "".join(part.get("content") or "" for part in parts) == "It is "
        assert "".join(part.get("reasoning") or "" for part in parts) == "Perhaps Answer: 3."
        assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "Answer:")


def first_match(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first; of those, the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@pytest.mark.case("STR-18")
def test_stop_strings_that_overlap(smollm2: Server) -> None:
    text, _ = greedy_tokens(smollm2, "completion", 40)
    middle = len(text) // 2
    part, longer, suffix = text[middle : middle + 3], text[middle : middle + 4], text[middle + 1 : middle + 4]
    for stops in ([part, longer], [longer, part], [longer, suffix], [suffix, longer]):
        assert said(smollm2, "completion", max_tokens=40, stop=stops).text == first_match(text, stops), stops
    with model("{{ messages[0].content }}", "x ababab abab") as server:
        assert server.chat(stop="abab").json["choices"][0]["message"]["content"] == "x "
        assert server.chat(stop=["babab", "abab abab"]).json["choices"][0]["message"]["content"] == "x a"


@pytest.mark.case("STR-19")
@ENDPOINTS
def test_every_chunk_has_a_choice_unless_usage_was_asked_for(smollm2: Server, endpoint: str) -> None:
    for options in (None, {"continuous_usage_stats": True}, {"include_usage": False}):
        events = ask(smollm2, endpoint, stream=True, stream_options=options, max_tokens=3).events
        assert all(len(event["choices"]) == 1 for event in events), options
