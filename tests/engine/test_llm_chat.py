"""`LLM.chat` tells the parts of answers apart, and enforces forms and calls, as the server does."""

from __future__ import annotations

import json

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.errors import ConfigError, InvalidValueError
from octavo.request import CompletionOutput, ToolCall
from tests.server.fakes import FakeEngine

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{# <tool_call> </think> #}{% if thinks %}<think>{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"const": "Oslo"}},
                                                   "required": ["city"]}},
}  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
QUESTION = [{"role": "user", "content": "Coat?"}]
PARAMS = SamplingParams(max_tokens=200)


def ask(says: str, sampling: SamplingParams = PARAMS, **kwargs: object) -> CompletionOutput:
    fake = FakeEngine(chat_template=TEMPLATE)
    fake.executor.says = says
    with LLM.from_engine(fake.engine) as llm:
        (output,) = llm.chat(QUESTION, sampling, **kwargs)  # type: ignore[arg-type]
    return output.outputs[0]


def test_plain_answers_are_content() -> None:
    answer = ask("Yes.")
    assert (answer.text, answer.content, answer.reasoning, answer.tool_calls) == ("Yes.", "Yes.", None, ())


def test_reasoning_is_told_apart() -> None:
    for says, thinks in (("<think>Rain.</think>\n\nYes.", False), ("Rain.</think>\n\nYes.", True)):
        answer = ask(says, thinks=thinks)
        assert (answer.text, answer.content, answer.reasoning) == (says, "Yes.", "Rain.")


def test_calls_are_told_apart() -> None:
    answer = ask(f"<think>Rain.</think>{CALL}", tools=[WEATHER])
    assert answer.tool_calls == (ToolCall("weather", '{"city": "Oslo"}'),)
    assert (answer.content, answer.reasoning) == (None, "Rain.")
    assert ask(CALL).content == CALL, "without tools it is text"
    assert ask(CALL, tools=[WEATHER], tool_choice="none").tool_calls == ()


def test_parsers_can_be_named() -> None:
    """For models whose template does not say how they write, and for answers that should stay whole."""
    fake = FakeEngine(chat_template=TEMPLATE)
    fake.executor.says = '[THINK]Rain.[/THINK][TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]'
    with LLM.from_engine(fake.engine, tool_call_parser="mistral", reasoning_parser="mistral") as llm:
        (output,) = llm.chat(QUESTION, PARAMS, tools=[WEATHER])
        (under_its_own_template,) = llm.chat(
            QUESTION, PARAMS, tools=[WEATHER], chat_template="{{ messages[0].content }}"
        )
    for answer in (output.outputs[0], under_its_own_template.outputs[0]):
        assert (answer.reasoning, answer.content) == ("Rain.", None)
        assert answer.tool_calls == (ToolCall("weather", '{"city": "Oslo"}'),)


def test_unknown_parsers_are_told_before_a_model_is_loaded() -> None:
    for name, flag in (("tool_call_parser", "--tool-call-parser"), ("reasoning_parser", "--reasoning-parser")):
        with pytest.raises(ConfigError, match=f"{flag} is 'nonsense'; known: "):
            LLM("no-such-model", **{name: "nonsense"})


def test_calls_that_are_required_are_enforced() -> None:
    (call,) = ask("<tool_call> no", tools=[WEATHER], tool_choice="required").tool_calls
    assert call.name == "weather" and json.loads(call.arguments) == {"city": "Oslo"}


def test_a_form_comes_after_the_reasoning() -> None:
    sampling = SamplingParams(max_tokens=50, structured_outputs=StructuredOutputsParams(choice=["Yes", "No"]))
    answer = ask("Rain.</think>No", sampling, thinks=True)
    assert (answer.reasoning, answer.content) == ("Rain.", "No")


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [WEATHER, {**WEATHER, "function": {"name": "f", "parameters": {"default": {1, 2}}}}]}, "tools[1]"),
        ({"tools": [WEATHER, {**WEATHER, "function": {"name": "f", "description": object()}}]}, "tools[1]"),
        ({"tools": [{**WEATHER, "function": {"name": "f", "parameters": {"default": float("nan")}}}]}, "tools[0]"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_malformed_tools_are_refused(kwargs: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        ask("x", **kwargs)
    assert refused.value.param == param


KNOWS_NO_TOOLS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def prompt_of(messages: list[dict[str, object]]) -> str:
    fake = FakeEngine(chat_template=KNOWS_NO_TOOLS, max_model_len=1024)
    with LLM.from_engine(fake.engine) as llm:
        (output,) = llm.chat(messages, SamplingParams(max_tokens=1), tools=[WEATHER])
    return fake.engine.tokenizer.decode(output.prompt_token_ids)


def call_with(arguments: object) -> dict[str, object]:
    return {"id": "a", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def test_every_spelling_of_messages_is_taken_where_the_template_knows_no_tools() -> None:
    parts = [{"type": "text", "text": "One."}]
    plain, spelled = (
        prompt_of(
            [
                {"role": "system", "content": content},
                {"role": "assistant", "content": content, "tool_calls": [call_with(arguments)]},
                {"role": "tool", "content": content},
            ]
        )
        for content, arguments in (("One.", {"city": "Oslo"}), (parts, '{"city":"Oslo"}'))
    )
    assert spelled == plain and plain.endswith("Result of the call: One.\n")


@pytest.mark.parametrize(
    "messages",
    [
        [{"content": "One."}],
        [{"role": "tool"}, "One."],
        [{"role": "assistant", "tool_calls": [{"id": "a"}]}],
        [{"role": "assistant", "tool_calls": "weather"}],
    ],
)
def test_malformed_messages_are_refused_where_the_template_knows_no_tools(messages: list[dict[str, object]]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        prompt_of(messages)
    assert caught.value.param == "messages"
