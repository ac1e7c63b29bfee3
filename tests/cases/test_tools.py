"""Kind 4: tools. The reports are listed in docs/cases.md."""

from __future__ import annotations

import itertools
import json
from typing import Any

import openai
import pytest
from jsonschema import validate

from octavo.tools.hermes import HERMES
from octavo.tools.reader import CallArguments, CallBegin, ToolCallReader
from tests.cases.models import QUESTION, ask
from tests.server.live import Server

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
FORCED = pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])


def streamed(server: Server, **fields: Any) -> tuple[list[dict[str, Any]], str, str]:
    """The calls put together by index, the content, and why the stream ended."""
    calls: dict[int, dict[str, Any]] = {}
    content, reasons = "", []
    for event in ask(server, "chat", stream=True, **fields).events:
        (choice,) = event["choices"]
        content += choice["delta"].get("content") or ""
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        for delta in choice["delta"].get("tool_calls", []):
            if delta["index"] not in calls:
                calls[delta["index"]] = {"id": delta["id"], "type": delta["type"], **delta["function"]}
            else:
                assert not delta.get("id") and not delta["function"].get("name"), "once, at the beginning"
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    (reason,) = reasons
    return [calls[index] for index in sorted(calls)], content, reason


@pytest.mark.case("TOL-02")
@pytest.mark.parametrize("choice", ["auto", "required", NAMED, "none"], ids=["auto", "required", "named", "none"])
def test_the_reason_is_the_same_streamed_and_whole(smollm2: Server, choice: object) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice, "temperature": 0, "max_tokens": 120}
    fields["parallel_tool_calls"] = False
    whole = ask(smollm2, "chat", **fields).json["choices"][0]
    calls, content, reason = streamed(smollm2, **fields)
    assert reason == whole["finish_reason"] and content == (whole["message"]["content"] or "")
    written = [call["function"]["arguments"] for call in whole["message"].get("tool_calls", [])]
    assert [call["arguments"] for call in calls] == written
    if choice not in ("auto", "none"):
        assert reason == "tool_calls"


@pytest.mark.case("TOL-09", "TOL-10")
@FORCED
def test_a_demanded_call_is_no_content(smollm2: Server, choice: object) -> None:
    ids = set()
    for seed in range(8):
        calls, content, _ = streamed(
            smollm2, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, seed=seed, max_tokens=120
        )
        (call,) = calls
        assert content == "" and call["type"] == "function" and call["name"] == "get_weather"
        validate(json.loads(call["arguments"]), PARAMETERS)
        ids.add(call["id"])
    assert len(ids) == 8 and all(ids)


@pytest.mark.case("TOL-09")
@FORCED
def test_the_stream_helper_reads_it(client: openai.OpenAI, choice: Any) -> None:
    with client.chat.completions.stream(
        model="model", messages=[{"role": "user", "content": QUESTION}], tools=[WEATHER], tool_choice=choice,  # type: ignore[list-item]
        parallel_tool_calls=False, max_tokens=120,
    ) as stream:  # fmt: skip
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls and message.tool_calls[0].id and not message.content


@pytest.mark.case("TOL-07", "TOL-13")
def test_histories_of_every_shape(smollm2: Server) -> None:
    def render(*messages: dict[str, Any]) -> tuple[int, str]:
        body = {"model": "model", "messages": [{"role": "user", "content": "a"}, *messages], "tools": [WEATHER]}
        answer = smollm2.request("POST", "/v1/chat/completions/render", body)
        return answer.status, answer.json.get("prompt", "")

    plain = render({"role": "assistant", "content": "ok"})
    assert plain[0] == 200
    for none in ([], None):
        assert render({"role": "assistant", "content": "ok", "tool_calls": none}) == plain
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    for content, result in itertools.product(([], None), ([{"type": "text", "text": "sunny"}], "", "sunny")):
        status, prompt = render(
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": result},
        )
        assert status == 200 and "None" not in prompt
    assert render({"role": "tool", "content": "sunny"})[0] in (200, 400)
    assert render({"role": "tool", "tool_call_id": "call_9", "content": "sunny"})[0] in (200, 400)


@pytest.mark.case("TOL-06")
def test_calls_without_content(smollm2: Server) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    prompts = set()
    for content in ({}, {"content": None}, {"content": ""}, {"content": []}):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call], **content}]
        body = {"model": "model", "messages": messages}
        prompts.add(smollm2.request("POST", "/v1/chat/completions/render", body).json["prompt"])
    (prompt,) = prompts
    assert "None" not in prompt


CALLS = [("f", '{"a": 1}'), ("g", '{"b": "</tool"}'), ("f", "{}")]


@pytest.mark.case("TOL-08")
@pytest.mark.parametrize("count", [2, 3])
def test_calls_are_numbered_wherever_they_are_split(count: int) -> None:
    """In the parser. On the wire each call has an id of its own: the tests above."""
    text = "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        for name, arguments in CALLS[:count]
    )
    for cut in range(len(text) + 1):
        reader = ToolCallReader(HERMES)
        events = [*reader.append(text[:cut]), *reader.append(text[cut:]), *reader.flush()]
        begun = [(event.index, event.name) for event in events if isinstance(event, CallBegin)]
        assert begun == [(index, name) for index, (name, _) in enumerate(CALLS[:count])]
        written = [""] * count
        for event in events:
            if isinstance(event, CallArguments):
                written[event.index] += event.text
        assert written == [arguments for _, arguments in CALLS[:count]], cut


@pytest.mark.case("TOL-11")
@pytest.mark.parametrize("stream", [False, True])
def test_demands_without_tools_are_refused_before_the_stream(smollm2: Server, stream: bool) -> None:
    for fields in (
        {"tools": [], "tool_choice": "required"}, {"tools": [], "tool_choice": NAMED}, {"tool_choice": NAMED},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "unknown"}}},
    ):  # fmt: skip
        answer = smollm2.chat(stream=stream, **fields)
        assert (answer.status, answer.error["param"]) == (400, "tool_choice")
    for choice in ("auto", "none", None):
        assert ask(smollm2, "chat", tools=[], tool_choice=choice, stream=stream, max_tokens=2).status == 200


@pytest.mark.case("TOL-12")
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_many_large_tools(smollm2: Server, choice: str) -> None:
    """Those that fit the context; of more, the error says that the prompt is too long."""
    for count in (1, 30, 120):
        tools = [
            {"type": "function", "function": {"name": f"tool_{n}", "parameters": {**PARAMETERS, "title": "t" * 1200}}}
            for n in range(count)
        ]
        answer = smollm2.chat(tools=tools, tool_choice=choice, max_tokens=2)
        assert answer.status == 200 or answer.error["code"] == "context_length_exceeded", answer.body[:300]


@pytest.mark.case("TOL-14")
@FORCED
def test_a_call_that_is_cut_ends_properly(smollm2: Server, choice: object) -> None:
    """However short: what comes is the beginning of the call that more tokens would have given."""
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice, "temperature": 0, "parallel_tool_calls": False}
    whole, _, reason = streamed(smollm2, max_tokens=120, **fields)
    assert reason == "tool_calls"
    for max_tokens in (2, 8, 14, 18):
        calls, content, reason = streamed(smollm2, max_tokens=max_tokens, **fields)
        assert content == ""
        assert reason in ("length", "tool_calls")
        for call in calls:
            assert whole[0]["arguments"].startswith(call["arguments"])
