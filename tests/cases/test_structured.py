"""Kind 3: structured output. The reports are listed in docs/cases.md."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from tests.cases.models import QUESTION, ask
from tests.server.live import Answer, Server


def as_format(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def form(server: Server, **fields: Any) -> str:
    """A text of a form, which must be complete."""
    choice = ask(server, "completion", **{"max_tokens": 100, "temperature": 1, **fields}).json["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    text: str = choice["text"]
    return text


def valid(server: Server, schema: Any, **fields: Any) -> Any:
    value = json.loads(form(server, **as_format(schema), **fields))
    Draft202012Validator(schema).validate(value)
    return value


def refused(answer: Answer) -> str:
    """The field that a 400 names."""
    assert answer.status == 400, answer.body
    param: str = answer.error["param"]
    return param


@pytest.mark.case("GRM-02")
@pytest.mark.parametrize(
    "schema", [{"type": "notatype"}, {"type": 5}, [], "x", {"$ref": "#/nope"}, {"properties": []}], ids=str
)
def test_invalid_schemas_are_refused(smollm2: Server, schema: object) -> None:
    assert refused(smollm2.complete(**as_format(schema))).startswith("response_format")
    assert ask(smollm2, "completion", max_tokens=1).status == 200


@pytest.mark.case("GRM-04")
def test_empty_objects_and_huge_bounds(smollm2: Server) -> None:
    assert valid(smollm2, {"type": "object", "properties": {}, "additionalProperties": False}) == {}
    answer = ask(smollm2, "completion", max_tokens=8, **as_format({"type": "string", "maxLength": 65536})).json
    assert answer["choices"][0]["text"].startswith('"')


@pytest.mark.case("GRM-05")
@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "array"}, {}, True], ids=str)
def test_schemas_that_say_little(smollm2: Server, schema: Any) -> None:
    for seed in range(5):
        choice = ask(smollm2, "completion", max_tokens=40, seed=seed, **as_format(schema)).json["choices"][0]
        if choice["finish_reason"] == "stop":
            Draft202012Validator(schema).validate(json.loads(choice["text"]))
        else:
            assert choice["text"].strip()


@pytest.mark.case("GRM-07", "GRM-08")
def test_keys_of_a_pattern_are_honoured_or_refused(smollm2: Server) -> None:
    schemas: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"ab": {"type": "integer"}},
            "patternProperties": {"^a": {"maximum": 9}},
            "additionalProperties": False,
            "required": ["ab"],
        },
        {"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "additionalProperties": {"type": "integer"}},
    ]
    for schema in schemas:
        answer = smollm2.complete(max_tokens=60, temperature=0, **as_format(schema))
        if answer.status == 400:
            assert refused(answer).startswith("response_format")
            assert re.search("patternProperties|propertyNames", answer.error["message"])
        else:
            text = answer.json["choices"][0]["text"]
            assert text.strip(" {\n"), "not blanks alone"
            if answer.json["choices"][0]["finish_reason"] == "stop":
                Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.case("GRM-08", "GRM-10")
@pytest.mark.parametrize("pattern", ["^(yes|no)$", "^yes$|^no$", "yes|no", "[0-9]", "^[0-9]", "[0-9]$", "^[0-9]+$"])
def test_patterns_with_and_without_anchors(smollm2: Server, pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern, "maxLength": 12}
    answer = smollm2.complete(max_tokens=60, temperature=0, **as_format(schema))
    if answer.status == 400:
        schema.pop("maxLength")
        answer = smollm2.complete(max_tokens=60, temperature=0, **as_format(schema))
    assert answer.status == 200, answer.body
    if answer.json["choices"][0]["finish_reason"] == "stop":
        Draft202012Validator(schema).validate(json.loads(answer.json["choices"][0]["text"]))


@pytest.mark.case("GRM-13")
def test_special_tokens_are_no_content(smollm2: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 8}}, "required": ["a"]}
    schema["additionalProperties"] = False
    special = smollm2.engine.tokenizer.special_token_ids
    bias = {str(token_id): 100 for token_id in list(special)[:300]}
    assert valid(smollm2, schema, logit_bias=bias).keys() == {"a"}


CONSTS = ["\n" + " " * 30, 'a\tb"c\\d', "🙂", "/", "ü"]


@pytest.mark.case("GRM-14")
@pytest.mark.parametrize("value", CONSTS, ids=ascii)
def test_constants_come_out_as_they_are(smollm2: Server, value: str) -> None:
    assert valid(smollm2, {"const": value}) == value
    assert valid(smollm2, {"enum": [value, "\u00fc"]}) in (value, "ü")


@pytest.mark.case("GRM-15", "GRM-19")
@pytest.mark.parametrize(
    "regex",
    ["[\\x00-\u2e7f]{1,10}", "[]a]{2}", "[^\\n]{1,5}", r"\d{2}-\w{1,5}", ".{3}", "(ä|ö|ü|ß|龜|🙂){3}"],
)
def test_expressions_match_the_whole_text(smollm2: Server, regex: str) -> None:
    for seed in range(4):
        assert re.fullmatch(regex, form(smollm2, structured_outputs={"regex": regex}, seed=seed))


@pytest.mark.case("GRM-19")
def test_choices_of_many_bytes(smollm2: Server) -> None:
    words = ["größe", "日本", "🙂"]
    assert all(valid(smollm2, {"enum": words}, seed=seed) in words for seed in range(4))
    assert form(smollm2, structured_outputs={"choice": words}) in words


@pytest.mark.case("GRM-16")
@pytest.mark.parametrize(
    "given", [{"type": "json_schema", "schema": {}}, {"type": "json_schema"}, {"type": "foo"}, "json", {}], ids=str
)
def test_a_misplaced_schema_is_named(smollm2: Server, given: object) -> None:
    assert refused(smollm2.chat(response_format=given)).startswith("response_format")


@pytest.mark.case("GRM-17")
@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": 3}, {"maximum": 42}, {"minimum": -123, "maximum": 42}, {"exclusiveMinimum": 0},
        {"multipleOf": 5, "minimum": 0, "maximum": 1000},
    ],
    ids=str,
)  # fmt: skip
def test_integers_lie_in_their_range(smollm2: Server, bounds: dict[str, int]) -> None:
    schema = {"type": "integer", **bounds}
    choices = ask(
        smollm2, "completion", n=30, temperature=2, seed=1, max_tokens=40, **as_format(schema)
    ).json["choices"]  # fmt: skip
    finished = [choice["text"] for choice in choices if choice["finish_reason"] == "stop"]
    assert len(finished) > 2
    for text in finished:
        assert re.fullmatch("0|-?[1-9][0-9]*", text)
        Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.case("GRM-20")
def test_a_schema_that_explodes_is_bounded(smollm2: Server) -> None:
    keys = {f"k{number}": {"type": "string", "pattern": "^(a|aa)+$"} for number in range(12)}
    schema: dict[str, Any] = {"type": "object", "properties": keys}
    for _ in range(12):
        schema = {"type": "object", "properties": {**keys, "next": schema, "list": {"maxItems": 1000, "items": schema}}}
    began = time.monotonic()
    answer = smollm2.complete(max_tokens=4, **as_format(schema))
    assert answer.status in (200, 400) and time.monotonic() - began < 10
    assert answer.status == 200 or answer.error["param"].startswith("response_format")
    assert smollm2.request("GET", "/health").status == 200


class Step(BaseModel):
    number: int = Field(ge=0, le=99)


class Plan(BaseModel):
    steps: list[Step] = Field(min_length=1, max_length=2)
    done: bool


@pytest.mark.case("GRM-21")
def test_references_as_pydantic_writes_them(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="model", messages=[{"role": "user", "content": QUESTION}], response_format=Plan, temperature=0,
        max_tokens=300,
    )  # fmt: skip
    assert isinstance(answer.choices[0].message.parsed, Plan) and answer.choices[0].message.parsed.steps
