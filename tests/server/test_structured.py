"""Answers of a certain form, over HTTP and with the openai package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Server, serving

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"enum": ["klein", "groß"]}, "age": {"type": "integer"}},
    "required": ["name", "size", "age"],
    "additionalProperties": False,
}


class Size(StrEnum):
    SMALL = "klein"
    LARGE = "groß"


class Animal(BaseModel):
    name: str
    size: Size
    age: int = Field(ge=0)


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    totals = EngineTotals()
    with serving(
        FakeEngine(totals, max_model_len=600).async_engine(), ServerSettings(("alphabet",)), totals
    ) as running:
        yield running


FORMS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    {"guided_json": SCHEMA},
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
@pytest.mark.parametrize("stream", [False, True])
def test_json_of_a_schema(shared: Server, form: dict[str, Any], endpoint: str, stream: bool) -> None:
    answer = getattr(shared, endpoint)(stream=stream, max_tokens=100, **form)
    assert answer.status == 200, answer.body
    if stream:
        choices = [event["choices"][0] for event in answer.events]
        text = "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)
        reason = choices[-1]["finish_reason"]
    else:
        choice = answer.json["choices"][0]
        text, reason = choice.get("text") or choice["message"]["content"], choice["finish_reason"]
    assert json.loads(text) == {"name": ALPHABET, "size": "groß", "age": 0} and reason == "stop"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"response_format": {"type": "json_object"}}, '{"abcdefghijklmnopqrstuvwxyz": "abcdefghijklmnopqrstuvwxyz"}'),
        ({"response_format": {"type": "text"}}, "xyz"),
        ({"structured_outputs": {"json": {"type": "array"}}}, '["abcdefghijklmnopqrstuvwxyz"]'),
        ({"structured_outputs": {"regex": "[a-c]{3}[0-9]"}}, "abc0"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "no"),
        ({"structured_outputs": {"grammar": 'root ::= "a" [0-9] "}"'}}, "a0}"),
        ({"guided_regex": "[a-c]{3}"}, "abc"),
        ({"guided_choice": ["yes", "no"]}, "no"),
        ({"guided_grammar": 'start: "x" "y"'}, "xy"),
        ({"structured_outputs": {"json": {"const": [1, 2]}, "disable_any_whitespace": True}}, "[1,2]"),
        ({"guided_json": {"const": [1, 2]}, "guided_whitespace_pattern": ""}, "[1,2]"),
        ({"structured_outputs": {"structural_tag": {"format": {"type": "const_string", "value": "so"}}}}, "so"),
        ({"response_format": {"type": "structural_tag", "format": {"type": "const_string", "value": "so"}}}, "so"),
    ],
)
def test_other_forms(shared: Server, form: dict[str, Any], text: str) -> None:
    answer = shared.chat(**form)
    assert answer.status == 200, answer.body
    assert answer.json["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    ("form", "param", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
         "response_format.json_schema.name", "letters"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
         "response_format.json_schema.schema", "not"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "strnig"}}}},
         "response_format.json_schema.schema", "strnig"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True}}},
         "response_format.json_schema.schema", "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": False}}},
         "response_format.json_schema.schema", "response_format.json_schema.schema is false"),
        ({"response_format": {"type": "json_object", "schema": {"type": "x"}}}, "response_format.schema", "'x'"),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "a"}}},
         "response_format.json_schema", "json_object"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "text"),
        ({"response_format": {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": 5}}},
         "response_format", "response_format.format.json_schema"),
        ({"guided_json": "{"}, "guided_json", "guided_json is not valid JSON"),
        ({"guided_json": False}, "guided_json", "guided_json is false"),
        ({"guided_json": {"pattern": "(", "type": "string"}}, "guided_json", "'('"),
        ({"guided_choice": []}, "guided_choice", "guided_choice must"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]", "guided_choice[1] must"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "guided_grammar is not valid GBNF"),
        ({"guided_grammar": "start: x"}, "guided_grammar", "1 | start: x"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "regex"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "guided_json"),
        ({"structured_outputs": {"choice": ["a"], "disable_any_whitespace": True}},
         "structured_outputs.disable_any_whitespace", "choice"),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", "uniqueItems"),
        ({"guided_regex": "("}, "guided_regex", "unclosed"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "regex and choice"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "choice"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "not a known field"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "both"),
        ({"response_format": {"type": "json_object", "shcema": {}}}, "response_format.shcema", "not a known field"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
def test_what_cannot_be_enforced_is_refused_by_its_field(
    shared: Server, form: dict[str, Any], param: str, message: str, endpoint: str
) -> None:
    for stream in (False, True):
        answer = getattr(shared, endpoint)(stream=stream, **form)
        assert answer.status == 400 and answer.error["param"] == param and message in answer.error["message"]
        for internal in ("llguidance", "Some(", "f64", "x-guidance", "registry", "verbose", ".rs"):
            assert internal not in answer.error["message"]
    assert shared.chat().json["choices"][0]["message"]["content"] == "xyz"


def test_beam_search_is_refused(shared: Server) -> None:
    answer = shared.chat(use_beam_search=True, n=2, **FORMS[0])
    assert answer.status == 400 and answer.error["param"] == "use_beam_search"


def test_an_answer_that_is_cut_has_length_as_its_reason(shared: Server) -> None:
    answer = shared.chat(max_tokens=12, **FORMS[0]).json["choices"][0]
    assert answer["finish_reason"] == "length" and answer["message"]["content"] == '{"name": "ab'


def test_several_choices(shared: Server) -> None:
    choices = shared.chat(n=3, **FORMS[0]).json["choices"]
    assert [json.loads(choice["message"]["content"])["age"] for choice in choices] == [0, 0, 0]


def test_log_probabilities_come_for_every_token(shared: Server) -> None:
    choice = shared.chat(logprobs=True, max_tokens=80, **FORMS[0]).json["choices"][0]
    tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert (
        b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
        .decode()
        .startswith(choice["message"]["content"])
    )
    assert len(tokens) > 40


def test_parse_with_a_pydantic_model(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model="alphabet", messages=[{"role": "user", "content": "An animal"}], response_format=Animal
    )
    assert parsed.choices[0].message.parsed == Animal(name=ALPHABET, size=Size.LARGE, age=0)


def test_the_stream_helper_with_a_pydantic_model(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="alphabet", messages=[{"role": "user", "content": "An animal"}], response_format=Animal
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == Animal(name=ALPHABET, size=Size.LARGE, age=0)


def test_a_form_that_explodes_ends_its_request_alone(shared: Server) -> None:
    answer = shared.chat(structured_outputs={"regex": "(a?){2000}a{2000}"}, max_tokens=50)
    assert answer.status == 400 and answer.error["code"] == "grammar_too_complex"
    assert shared.chat().status == 200
