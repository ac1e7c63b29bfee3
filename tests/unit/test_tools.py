"""Calls of tools: what the grammar lets through is what the reader finds, in pieces of any size."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from octavo.errors import ConfigError, InvalidValueError
from octavo.grammar.compiler import CompiledForm
from octavo.grammar.forms import Form, Json, JsonStyle
from octavo.tools.call_forms import answer_form, arguments_form
from octavo.tools.enforceable import enforceable
from octavo.tools.format import ToolFormat
from octavo.tools.generic_json import GENERIC_JSON, with_tools_described
from octavo.tools.hermes import HERMES
from octavo.tools.llama3_json import LLAMA3_JSON
from octavo.tools.mistral import MISTRAL
from octavo.tools.mistral_args import MISTRAL_ARGS
from octavo.tools.reader import CallArguments, CallBegin, Content, ToolCallReader
from octavo.tools.registry import TOOL_PARSERS, format_in, tool_format
from octavo.tools.tool import Tool, ToolChoice
from tests.schema_generator import validator_of
from tests.unit.rambling import COMPILER, compiled, ramble, takes

CITY = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["°C", "°F"]}},
        "required": ["city"],
    },
)
NOTHING = Tool("time.now", {})
NESTED = Tool("plot", {"properties": {"points": {"type": "array", "items": {"type": "object"}, "maxItems": 2}}})
TOOLS = (CITY, NOTHING, NESTED)
FORMATS = list(TOOL_PARSERS.values())
CALLS = [("get_weather", {"city": 'a}"{\\'}), ("time.now", {}), ("plot", {"points": [{"x": {"y": ["]"]}}]})]


def written(form: ToolFormat, calls: list[tuple[str, Any]]) -> str:
    """Calls as the family's models write them."""
    bodies = [
        f"{form.before_name}{name}{form.before_arguments}{json.dumps(arguments)}{form.after_arguments}"
        for name, arguments in calls
    ]
    return form.opening + form.separator.join(bodies) + form.closing


def read(form: ToolFormat, text: str, rng: random.Random | None = None) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls; with `rng`, the text comes in pieces."""
    reader, content, calls = ToolCallReader(form), "", list[tuple[str, str]]()
    events = []
    while text:
        length = len(text) if rng is None else rng.randint(1, 6)
        events += reader.append(text[:length])
        text = text[length:]
    for event in [*events, *reader.flush()]:
        match event:
            case Content(piece):
                content += piece
            case CallBegin(index, name):
                assert index == len(calls), "calls begin in order"
                calls.append((name, ""))
            case CallArguments(index, piece):
                assert index == len(calls) - 1, "arguments belong to the call that began last"
                calls[-1] = (calls[-1][0], calls[-1][1] + piece)
    assert reader.num_calls == len(calls)
    return content, calls


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("num_calls", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_calls_are_read_in_pieces_of_any_size(form: ToolFormat, num_calls: int, seed: int) -> None:
    text = written(form, CALLS[:num_calls])
    content, calls = read(form, text, random.Random(seed) if seed else None)
    assert content == "" and [(name, json.loads(arguments)) for name, arguments in calls] == CALLS[:num_calls]


@pytest.mark.parametrize("form", [form for form in FORMATS if form.anywhere], ids=lambda form: form.name)
@pytest.mark.parametrize("seed", range(5))
def test_text_around_calls(form: ToolFormat, seed: int) -> None:
    rng = random.Random(seed)
    text = f"I look <{form.opening[:-1]} up.\n\n{written(form, CALLS[:1])}\n"
    content, calls = read(form, text, rng)
    assert content == f"I look <{form.opening[:-1]} up." and [name for name, _ in calls] == ["get_weather"]
    assert read(form, " no calls \n", rng) == (" no calls \n", [])


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_an_answer_cut_in_a_call_has_what_came_of_it(form: ToolFormat) -> None:
    whole = written(form, CALLS[:1])
    for length in range(len(whole)):
        content, calls = read(form, whole[:length])
        assert len(calls) <= 1 and all(name == "get_weather" for name, _ in calls)
        assert all(json.dumps(CALLS[0][1]).startswith(arguments) for _, arguments in calls)
        assert not content or whole.startswith(content)


@pytest.mark.parametrize("form", [LLAMA3_JSON, GENERIC_JSON], ids=lambda form: form.name)
def test_an_answer_that_is_no_call_is_text(form: ToolFormat) -> None:
    for text in ("Hello {there}", "  {x", '{"else": 1}', "{"):
        assert read(form, text, random.Random(1)) == (text, [])


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("several", [False, True])
def test_required_calls_validate(form: ToolFormat, several: bool) -> None:
    validators = {tool.name: validator_of({"type": "object", **tool.parameters}) for tool in TOOLS}
    grammar, rng = (
        compiled(answer_form(form, ToolChoice(TOOLS, required=True, several=several), None)),
        random.Random(3),
    )
    texts = [text for text in (ramble(grammar, rng, most=400) for _ in range(30)) if text is not None]
    assert len(texts) > 10
    for text in texts:
        content, calls = read(form, text, rng)
        assert content == "" and calls and (several or len(calls) == 1)
        for name, arguments in calls:
            validators[name].validate(json.loads(arguments))
            assert set(json.loads(arguments)) <= set(TOOLS[[t.name for t in TOOLS].index(name)].parameters["properties"]
                                                    if name != "time.now" else ())  # fmt: skip


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("several", [False, True])
def test_a_call_that_has_opened_is_enforced(form: ToolFormat, several: bool) -> None:
    grammar = compiled(answer_form(form, ToolChoice(TOOLS, several=several), None))
    assert takes(grammar, "Hello there.") and takes(grammar, written(form, CALLS[:1]))
    assert takes(grammar, written(form, CALLS[:2])) == several
    assert not takes(grammar, written(form, [("get_wether", {})]))
    assert not takes(grammar, written(form, [("get_weather", {"city": 1})]))
    assert not takes(grammar, written(form, [("get_weather", {"city": "x", "more": 1})]))
    if form.anywhere:
        before = f"I look. {written(form, CALLS[:1])}"
        assert takes(grammar, before) and not takes(grammar, f"I look. {form.opening}nonsense")
        assert takes(grammar, f"{before} {written(form, CALLS[:1])}") == several
    required = compiled(answer_form(form, ToolChoice((CITY,), required=True, several=several), None))
    assert takes(required, written(form, CALLS[:1])) and not takes(required, written(form, CALLS[1:2]))
    assert not takes(required, "Hello there.") and not takes(required, "")


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_an_answer_is_a_call_or_has_a_form(form: ToolFormat) -> None:
    grammar = compiled(answer_form(form, ToolChoice(TOOLS), Json({"enum": [[1], "x"]}, JsonStyle())))
    assert takes(grammar, "[1]") and takes(grammar, written(form, CALLS[:1])) and not takes(grammar, "Hello")


def test_what_cannot_be_enforced_of_a_tool_that_is_not_strict_is_passed_over() -> None:
    def check(form: Form, param: str) -> None:
        COMPILER.compile(form, param)

    def arguments(parameters: dict[str, Any]) -> CompiledForm:
        return compiled(arguments_form(enforceable(Tool("f", parameters), "tools[0]", check)))

    partly = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    assert takes(arguments(partly), '{"a": [1, 1]}') and not takes(arguments(partly), '{"a": 1}')
    assert takes(arguments({"type": "object", "properties": {"a": {"$ref": "#/lost"}}}), '{"a": 1, "b": []}')
    with pytest.raises(InvalidValueError, match="uniqueItems") as refused:
        enforceable(Tool("f", partly, strict=True), "tools[3]", check)
    assert refused.value.param == "tools[3].function.parameters"
    assert not enforceable(CITY, "tools[0]", check).lenient


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "x" * 129, "a\nb"])
def test_names_that_no_format_can_carry(name: str) -> None:
    with pytest.raises(InvalidValueError, match="names have"):
        Tool(name, {})


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '<tool_call>\n{\"name\": ' }}", HERMES),
        ("{{ '[TOOL_CALLS]' }}", MISTRAL),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", MISTRAL_ARGS),
        ("{{ '<|python_tag|>' }}", LLAMA3_JSON),
        ("{{ '<tool_call>\n<function=' }}", GENERIC_JSON),
        ("{{ messages }}", GENERIC_JSON),
    ],
)
def test_the_format_is_found_from_the_template(template: str, expected: ToolFormat) -> None:
    assert format_in(template) is expected


def test_formats_are_known_by_name() -> None:
    assert tool_format("hermes") is HERMES
    with pytest.raises(ConfigError, match=r"hermes.*llama3_json"):
        tool_format("herpes")


def test_tools_for_a_template_that_knows_none() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "does é", "parameters": {}}}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    described = with_tools_described(messages, tools)
    assert [message["role"] for message in described] == ["system", "user", "assistant", "user"]
    assert described[0]["content"].startswith("Be brief.\n\n") and "does é" in described[0]["content"]
    assert read(GENERIC_JSON, described[2]["content"]) == ("", [("f", '{"a": 1}')]) and "42" in described[3]["content"]
    assert with_tools_described(messages[1:2], tools)[0]["role"] == "system"
