"""Models that reason: told apart, counted, bounded, passed on; over templates written for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from octavo.chat.format import ChatParsers
from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Server, serving
from tests.server.test_tool_calls import CALL, WEATHER

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}{% endfor %}"
    "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}"
    "{% if tools %}<tool_call>{% endif %}"
    "{% if add_generation_prompt %}<assistant>\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPENING_TEMPLATE = TEMPLATE.replace("<assistant>\n", "<assistant>\n<think>\n")


@contextmanager
def model(template: str, says: str, **settings: Any) -> Iterator[Server]:
    totals = EngineTotals()
    fake = FakeEngine(totals, chat_template=template, max_model_len=2048, num_blocks=1024)
    fake.executor.says = says
    with serving(fake.async_engine(), ServerSettings(("alphabet",), **settings), totals) as running:
        yield running


SAID = "Hm, </b> hm.\n</think>\n\nForty-two."
ANSWERS = [(TEMPLATE, f"<think>\n{SAID}"), (OPENING_TEMPLATE, SAID)]


@pytest.mark.parametrize(("template", "says"), ANSWERS)
def test_reasoning_is_told_from_the_answer(template: str, says: str) -> None:
    with model(template, says) as server:
        answer = server.chat().json
        message = answer["choices"][0]["message"]
        assert message["content"] == "Forty-two."
        assert message["reasoning_content"] == message["reasoning"] == "Hm, </b> hm."
        num_reasoning = says.index("</think>") + len("</think>")
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_reasoning}
        assert answer["usage"]["completion_tokens"] == len(says) + 1

        events = server.chat(stream=True, stream_options={"include_usage": True}).events
        deltas = [event["choices"][0]["delta"] for event in events[:-1]]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm, </b> hm."
        assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)
        assert "".join(delta.get("content") or "" for delta in deltas) == "Forty-two."
        assert events[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_reasoning}

        hidden = server.chat(include_reasoning=False).json["choices"][0]["message"]
        assert hidden == {"role": "assistant", "content": "Forty-two.", "refusal": None}


def test_an_answer_without_reasoning() -> None:
    with model(TEMPLATE, "Forty-two.") as server:
        answer = server.chat().json
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Forty-two.", "refusal": None}
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize("off", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_reasoning_that_the_template_has_ended_is_over(off: dict[str, Any]) -> None:
    with model(TEMPLATE, "<think> is a tag.") as server:
        assert server.chat(**off).json["choices"][0]["message"]["content"] == "<think> is a tag."


def test_effort_reaches_the_template() -> None:
    with model(TEMPLATE, "Hi") as server:
        plain = server.chat().json["usage"]["prompt_tokens"]
        assert server.chat(reasoning_effort="high").json["usage"]["prompt_tokens"] == plain + len("[high]")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_in_the_history_reaches_the_template(field: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", field: "why"}]
    with model(TEMPLATE, "Hi") as server:
        answer = server.request("POST", "/v1/chat/completions", {"model": "alphabet", "messages": messages})
        assert answer.json["usage"]["prompt_tokens"] == len("<user>a<assistant><think>why</think>b<assistant>\n")


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}


@pytest.mark.parametrize(("template", "says"), ANSWERS)
def test_a_form_begins_where_the_reasoning_ends(template: str, says: str) -> None:
    with model(template, says) as server:
        message = server.chat(**FORM).json["choices"][0]["message"]
        assert json.loads(message["content"]).keys() == {"a"} and message["reasoning"] == "Hm, </b> hm."


def test_a_form_without_reasoning() -> None:
    with model(TEMPLATE, '{"a": 7}') as server:
        message = server.chat(**FORM).json["choices"][0]["message"]
        assert json.loads(message["content"]).keys() == {"a"} and "reasoning" not in message


@pytest.mark.parametrize(("template", "says"), ANSWERS)
def test_calls_after_reasoning(template: str, says: str) -> None:
    with model(template, says.replace("Forty-two.", CALL)) as server:
        choice = server.chat(tools=[WEATHER], max_tokens=400).json["choices"][0]
        assert choice["message"]["reasoning"] == "Hm, </b> hm." and choice["finish_reason"] == "tool_calls"
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["city"] == "Paris"


@pytest.mark.parametrize(("template", "says"), ANSWERS)
@pytest.mark.parametrize("form", [{}, FORM])
def test_a_budget_ends_the_reasoning(template: str, says: str, form: dict[str, Any]) -> None:
    with model(template, says.replace("Hm, </b> hm.", "Hm, " * 50)) as server:
        answer = server.chat(thinking_token_budget=20, max_tokens=100, **form).json
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 20 + len("</think>")}
        message = answer["choices"][0]["message"]
        assert message["reasoning"].startswith("Hm, Hm,") and message["content"]
        if form:
            assert json.loads(message["content"]).keys() == {"a"}


def test_a_budget_of_nothing() -> None:
    with model(OPENING_TEMPLATE, "Hm</think>") as server:
        answer = server.chat(thinking_token_budget=0, max_tokens=50).json
        assert "reasoning" not in answer["choices"][0]["message"]


def test_a_model_without_markers() -> None:
    with model("{% for message in messages %}{{ message.content }}{% endfor %}", "<think>a</think>b") as server:
        assert server.chat().json["choices"][0]["message"]["content"] == "<think>a</think>b"
        refused = server.chat(thinking_token_budget=5)
        assert refused.status == 400 and refused.error["param"] == "thinking_token_budget"
    with model("{% for message in messages %}{{ message.content }}{% endfor %}", "[THINK]a[/THINK]b",
               parsers=ChatParsers(reasoning="mistral")) as server:  # fmt: skip
        assert server.chat().json["choices"][0]["message"]["reasoning"] == "a"
    with model(TEMPLATE, "<think>a</think>b", parsers=ChatParsers(reasoning="none")) as server:
        assert server.chat().json["choices"][0]["message"]["content"] == "<think>a</think>b"


def test_several_choices_and_log_probabilities() -> None:
    with model(TEMPLATE, "<think>ab</think>cd") as server:
        answer = server.chat(n=2, logprobs=True).json
        for choice in answer["choices"]:
            assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("ab", "cd")
            assert len(choice["logprobs"]["content"]) == len("<think>ab</think>cd")
        events = server.chat(logprobs=True, stream=True).events
        entries = [entry for e in events for entry in (e["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert "".join(entry["token"] for entry in entries) == "<think>ab</think>cd"
