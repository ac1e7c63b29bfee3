"""Tools: offered, chosen, called, streamed, answered; with the openai package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from jsonschema import validate

from octavo.chat.format import ChatParsers
from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Server, serving

HERMES_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function.name }}{{ call.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}"
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city", "days"],
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "time.now"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'


class Stage:
    """A server over a fake model of which a test says what it would like to say."""

    def __init__(self, fake: FakeEngine, server: Server) -> None:
        self.fake = fake
        self.server = server

    def ask(self, says: str, **fields: Any) -> dict[str, Any]:
        """The choice, whole and put together from a stream, which must be the same."""
        self.fake.executor.says = says
        whole = self.server.chat(tools=fields.pop("tools", [WEATHER, NOW]), **fields)
        assert whole.status == 200, whole.body
        return whole.json["choices"][0]


@pytest.fixture(scope="module", params=["hermes"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    totals = EngineTotals()
    fake = FakeEngine(totals, chat_template=HERMES_TEMPLATE, max_model_len=4096, num_blocks=1024)
    with serving(fake.async_engine(), ServerSettings(("alphabet",)), totals) as running:
        yield Stage(fake, running)


@pytest.fixture
def client(stage: Stage) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stage.server.url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = choice["message"].get("tool_calls", [])
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


PARIS = ("get_weather", {"city": "Paris", "days": 3})


def test_a_call(stage: Stage) -> None:
    choice = stage.ask(CALL)
    assert calls_of(choice) == [PARIS] and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None


def test_text_and_a_call_and_text(stage: Stage) -> None:
    choice = stage.ask(f"I look.\n{CALL}\nDone <b>.")
    assert calls_of(choice) == [PARIS] and choice["message"]["content"] == "I look.\nDone <b>."


def test_no_call(stage: Stage) -> None:
    choice = stage.ask("It is <b>sunny</b>. \n")
    assert choice["message"] == {"role": "assistant", "content": "It is <b>sunny</b>. \n", "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_several_calls(stage: Stage) -> None:
    second = '<tool_call>\n{"name": "time.now", "arguments": {}}\n</tool_call>'
    assert calls_of(stage.ask(f"{CALL}\n{second}")) == [PARIS, ("time.now", {})]
    assert calls_of(stage.ask(f"{CALL}\n{second}", parallel_tool_calls=False)) == [PARIS]


def test_a_call_that_has_opened_is_made_valid(stage: Stage) -> None:
    """The model would like to say nonsense; the grammar lets it say a call."""
    choice = stage.ask("Hm <tool_call>nonsense, all of it")
    (name, arguments), *_ = calls_of(choice)
    parameters = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in (WEATHER, NOW)}
    validate(arguments, parameters[name])
    assert choice["message"]["content"] == "Hm"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "time.now"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
        ({"type": "function", "function": {"name": "time.now"}}, {"time.now"}),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NOW]}}, {"time.now"}),
    ],
)
def test_a_call_can_be_demanded(stage: Stage, choice: Any, names: set[str]) -> None:
    answer = stage.ask("I would rather talk.", tool_choice=choice, parallel_tool_calls=False)
    ((name, arguments),) = calls_of(answer)
    assert name in names and answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
    if name == "get_weather":
        validate(arguments, WEATHER["function"]["parameters"])


def test_none_and_allowed_tools(stage: Stage) -> None:
    choice = stage.ask(CALL, tool_choice="none")
    assert choice["message"]["content"] == CALL and stage.fake.tokenizer.template_kwargs["tools"] is None
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW]}}
    assert [name for name, _ in calls_of(stage.ask(CALL, tool_choice=allowed))] == ["time.now"]
    assert stage.fake.tokenizer.template_kwargs["tools"][0] == WEATHER


def test_a_call_or_a_form(stage: Stage) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["a", "b"]}}}
    assert stage.ask('"b" or so', response_format=form)["message"]["content"] == '"b"'
    assert calls_of(stage.ask(CALL, response_format=form)) == [PARIS]


def test_an_answer_cut_in_a_call(stage: Stage) -> None:
    choice = stage.ask(CALL, max_tokens=len(CALL) - 25)
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather" and '{"city": "Paris", "days": 3}'.startswith(
        call["function"]["arguments"]
    )


def test_streamed(stage: Stage) -> None:
    stage.fake.executor.says = f"I look.\n{CALL}\n{CALL}"
    events = stage.server.chat(tools=[WEATHER], stream=True).events
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    pieces = [call for delta in deltas for call in delta.get("tool_calls", [])]
    begins = [piece for piece in pieces if "id" in piece]
    assert [(piece["index"], piece["function"]["name"]) for piece in begins] == [(0, "get_weather"), (1, "get_weather")]
    assert [piece["index"] for piece in pieces] == sorted(piece["index"] for piece in pieces)
    assert all(set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"}
               for piece in pieces if piece not in begins)  # fmt: skip
    for index in (0, 1):
        text = "".join(piece["function"]["arguments"] for piece in pieces if piece["index"] == index)
        assert json.loads(text) == PARIS[1]


def test_the_stream_helper_puts_calls_together(stage: Stage, client: openai.OpenAI) -> None:
    stage.fake.executor.says = f"{CALL}\n{CALL}"
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    messages: Any = [{"role": "user", "content": "?"}]
    with client.chat.completions.stream(model="alphabet", messages=messages, tools=[strict]) as stream:  # type: ignore[list-item]
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None and [json.loads(call.function.arguments) for call in calls] == [PARIS[1]] * 2
    assert final.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("arguments", ['{"city": "Paris", "days": 3}', {"city": "Paris", "days": 3}])
@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
def test_calls_and_results_in_the_history(stage: Stage, arguments: Any, content: dict[str, Any]) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "How is Paris?"},
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    stage.fake.executor.says = "Sunny."
    answer = stage.server.request(
        "POST", "/v1/chat/completions", {"model": "alphabet", "messages": messages, "tools": [WEATHER]}
    )
    assert answer.json["choices"][0]["message"]["content"] == "Sunny."
    history = '<user>How is Paris?<assistant><tool_call>get_weather{"city": "Paris", "days": 3}<tool>sunny'
    assert answer.json["usage"]["prompt_tokens"] == len(json.dumps(WEATHER) + history)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "lost"}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "shape": {}}}]}, "tools[0].function.shape"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]},
         "tools[0].function.parameters"),
    ],
)  # fmt: skip
def test_what_is_refused(stage: Stage, fields: dict[str, Any], param: str) -> None:
    answer = stage.server.chat(**{"tools": [WEATHER], **fields})
    assert answer.status == 400 and answer.error["param"] == param


def test_a_schema_that_cannot_be_enforced_is_passed_over_unless_strict(stage: Stage) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    choice = stage.ask("", tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert calls_of(choice) == [("f", {"a": [""]})]


def test_a_template_without_tools_has_them_described() -> None:
    totals = EngineTotals()
    template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    fake = FakeEngine(totals, chat_template=template, max_model_len=4096, num_blocks=1024)
    with serving(fake.async_engine(), ServerSettings(("alphabet",)), totals) as running:
        stage = Stage(fake, running)
        choice = stage.ask('{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]}')
        assert calls_of(choice) == [PARIS] and choice["finish_reason"] == "tool_calls"
        assert stage.ask("No {need}.")["message"]["content"] == "No {need}."


def test_the_parser_can_be_named() -> None:
    totals = EngineTotals()
    fake = FakeEngine(totals, chat_template=HERMES_TEMPLATE, max_model_len=4096, num_blocks=1024)
    settings = ServerSettings(("alphabet",), parsers=ChatParsers("mistral"))
    with serving(fake.async_engine(), settings, totals) as running:
        says = '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]'
        fake.executor.says = says
        (call,) = running.chat(tools=[WEATHER]).json["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == PARIS[1] and len(call["id"]) == 9
