"""Forms followed by a model that picks any token it may: what is finished must have the form."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from octavo.errors import InvalidValueError, RequestError
from octavo.grammar.compiler import MAX_CACHED, GrammarCompiler
from octavo.grammar.definition import MAX_DEFINITION_CHARACTERS, MAX_SCHEMA_DEPTH
from octavo.grammar.forms import Chain, Form, FreeUntil, Json, JsonStyle, Marker, OneOf, Regex, Repeat, Tags, Text
from octavo.grammar.masks import MaskComputer
from octavo.structured_outputs import StructuredOutputsParams
from tests.schema_generator import realistic_schemas, validator_of
from tests.unit.rambling import MASKS, TOKENIZER, VOCAB_SIZE, allowed, compiled, of, ramble, takes

CHOICES = ["yes", "no", 'né "🙂"\n', "<|im_end|>"]


@pytest.mark.parametrize("index", range(200))
def test_realistic_schemas_are_kept_to(index: int) -> None:
    schema = realistic_schemas(200)[index]
    validator, form, rng = validator_of(schema), of(json=schema), random.Random(index)
    finished = [text for text in (ramble(form, rng, jumps=jumps) for jumps in (True, False, True)) if text is not None]
    assert finished
    for text in finished:
        validator.validate(json.loads(text))


# What llguidance covers of the JSON-Schema-Test-Suite's keywords: schema, values it accepts, values it does not.
SUITE: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [1, "x", None, [], {}], []),
    ({}, [1, "x", None, [True], {"a": 1}], []),
    ({"type": "integer"}, [0, -7, 10**20], [1.5, "1", None, True]),
    ({"type": "number"}, [0, -1.5, 1e10], ["1", None]),
    ({"type": ["string", "null"]}, ["", None], [1, [], {}]),
    ({"enum": [6, "foo", [], True, {"foo": 12}]}, [6, "foo", [], True, {"foo": 12}], [7, {"foo": 13}, False, None]),
    ({"enum": ["foo\nbar", "foo\rbar", 'q"q']}, ["foo\nbar", "foo\rbar", 'q"q'], ["abc"]),
    ({"const": {"a": ["é", None]}}, [{"a": ["é", None]}], [{"a": ["é"]}, {}]),
    ({"minimum": 1.1, "type": "number"}, [1.1, 2.6], [0.6]),
    ({"exclusiveMaximum": 3.0, "type": "number"}, [2.2, -5], [3.0, 3.5]),
    ({"type": "integer", "minimum": -2, "maximum": 12}, [-2, 0, 9, 10, 12], [-3, 13, 100]),
    ({"type": "integer", "multipleOf": 7}, [0, 7, 21], [1, 8]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "日本", "🙂🙂"], ["a", "abcd", "🙂"]),
    ({"type": "string", "pattern": "^a*$"}, ["", "aaa"], ["abc"]),
    ({"type": "string", "pattern": "b+"}, ["abbbc", "b"], ["ac"]),
    ({"type": "string", "format": "date"}, ["1963-06-19", "2020-02-29"], ["06/19/1963", "2020-13-01"]),
    ({"type": "string", "format": "date-time"}, ["1963-06-19T08:30:06.283185Z"], ["1963-06-19", "no"]),
    ({"type": "string", "format": "time"}, ["08:30:06Z", "23:59:59.5+01:00"], ["22:59:60Z", "24:00:00Z"]),
    ({"type": "string", "format": "uuid"}, ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08-aa98-11ea"]),
    ({"type": "string", "format": "ipv4"}, ["192.168.0.1"], ["127.0.0.0.1", "256.256.256.256"]),
    ({"type": "string", "format": "email"}, ["joe.bloggs@example.com"], ["2962"]),
    ({"type": "array", "items": {"type": "integer"}}, [[], [1, 2, 3]], [[1, "x"], {"length": 1}]),
    ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
     [[], [1], [1, "foo"]], [["foo", 1], [1, "foo", 1]]),
    ({"type": "object", "properties": {"foo": {"type": "integer"}, "bar": {"type": "string"}}},
     [{}, {"foo": 1, "bar": "baz"}, {"quux": []}], [{"foo": 1, "bar": {}}]),
    ({"type": "object", "properties": {"foo": {}}, "required": ["foo"]}, [{"foo": 1}], [{}, {"bar": 1}]),
    ({"type": "object", "properties": {"foo": {}}, "additionalProperties": False}, [{"foo": 1}, {}], [{"boom": 1}]),
    ({"type": "object", "additionalProperties": {"type": "boolean"}}, [{}, {"a": True}], [{"a": 12}]),
    ({"type": "object", "patternProperties": {"^f.*o$": {"type": "integer"}}, "additionalProperties": False},
     [{"foo": 1}, {}], [{"foo": "bar"}, {"bar": 1}]),
    ({"anyOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, [1, 2.5], [1.5, "x"]),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["x", 3], [True, None, 1.5]),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]}, [3, 5], [2, 6]),
    ({"type": "object", "properties": {"foo": {"$ref": "#"}}, "additionalProperties": False},
     [{"foo": {"foo": {}}}, {}], [{"bar": False}, {"foo": {"bar": {}}}]),
    ({"$defs": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/b"}, [5], ["a"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), SUITE, ids=[json.dumps(case[0])[:60] for case in SUITE])
def test_keywords_of_the_schema_test_suite(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    form = of(json=schema)
    for value in valid:
        assert takes(form, json.dumps(value, ensure_ascii=False)), value
    for value in invalid:
        assert not takes(form, json.dumps(value, ensure_ascii=False)), value


@pytest.mark.parametrize(
    "keyword",
    [
        {"not": {"type": "string"}},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "contains": {"type": "integer"}},
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"if": {"type": "string"}},
        {"type": "object", "unevaluatedProperties": False},
        {"type": "object", "propertyNames": {"pattern": "^a"}},
        {"$dynamicRef": "#a"},
    ],
    ids=lambda schema: next(reversed(schema)),
)
def test_keywords_that_cannot_be_enforced_are_refused_by_name(keyword: dict[str, Any]) -> None:
    nested = {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, keyword]}}}
    for schema in (keyword, nested, {**keyword, "x-guidance": {"lenient": True}}):
        with pytest.raises(InvalidValueError, match=next(reversed(keyword)).replace("$", r"\$")) as refused:
            of(json=schema)
        assert refused.value.param == "structured_outputs" and refused.value.code == "invalid_grammar"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json": {"type": "strnig"}}, "strnig"),
        ({"json": {"type": "string", "format": "colour"}}, "colour"),
        ({"json": {"$ref": "#/$defs/missing"}}, "missing"),
        ({"json": {"$ref": "https://example.com/schema"}}, r"\$ref leads .*example.com"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
        ({"json": {"type": "number", "maximum": 1e20}}, "maximum cannot be enforced"),
        ({"json": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}, "oneOf is enforced only"),
        ({"json": {"enum": []}}, "empty"),
        ({"json": False}, "accepts no value"),
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"grammar": 'start: "a" missing'}, "missing"),
        ({"grammar": 'rule: "a"'}, "start"),
        ({"grammar": 'start: %json {"not": {}}'}, "not"),
        ({"grammar": "root ::= missing"}, "missing"),
        ({"grammar": "start: start"}, "accepts no text"),
        ({"whitespace_pattern": "(", "json_object": True}, "unclosed"),
        ({"structural_tag": {}}, "triggers"),
        ({"structural_tag": {"triggers": ["<a"], "structures": [{"begin": "<b", "end": ""}]}}, "none of the triggers"),
        ({"structural_tag": {"format": {"type": "qwen_xml"}}}, "qwen_xml"),
        ({"structural_tag": {"format": {"type": "tag", "begin": 1}}}, "begin"),
        ({"json": {"enum": ["x" * MAX_DEFINITION_CHARACTERS]}}, "characters"),
        ({"regex": "x" * (MAX_DEFINITION_CHARACTERS + 1)}, "characters"),
    ],
)
def test_what_is_malformed_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        of(**fields)


def test_depth_is_bounded() -> None:
    schema: Any = {"type": "string"}
    for _ in range(MAX_SCHEMA_DEPTH // 2 - 1):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    of(json=schema)
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(InvalidValueError, match="deep"):
        of(json=schema)


def test_a_pattern_that_explodes_ends_its_request_only() -> None:
    with pytest.raises(InvalidValueError, match="expressions"):
        ramble(of(regex="(a?){2000}a{2000}"), random.Random(0))


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
        ({"choice": CHOICES}, lambda text: text in CHOICES),
        ({"regex": r'a/"b"[0-9]{2,4}\n'}, lambda text: re.fullmatch(r'a/"b"[0-9]{2,4}\n', text)),
        ({"grammar": 'start: "x" y+\ny: /[0-9]/ ";"'}, lambda text: re.fullmatch(r"x([0-9];)+", text)),
        ({"grammar": 'root ::= y ("," y)*\ny ::= [0-9] "é"'}, lambda text: re.fullmatch(r"[0-9]é(,[0-9]é)*", text)),
    ],
)
def test_other_forms(fields: dict[str, Any], holds: Callable[[str], Any]) -> None:
    form, rng = of(**fields), random.Random(7)
    texts = [text for text in (ramble(form, rng) for _ in range(20)) if text is not None]
    assert texts and all(holds(text) for text in texts)


def test_dates_exist() -> None:
    nested = {"type": "object", "properties": {"on": {"anyOf": [{"type": "string", "format": "date"}]}}}
    form = of(json={**nested, "additionalProperties": {"const": {"format": "date"}}})
    for year, month, day in itertools.product(("0000", "0001", "1900", "2000", "2023", "2024"), range(14), range(33)):
        text = f"{year}-{month:02}-{day:02}"
        try:
            exists = bool(date.fromisoformat(text))
        except ValueError:
            exists = False
        assert takes(form, json.dumps({"on": text})) == exists, text
    assert takes(form, '{"else": {"format": "date"}}')
    moment = of(json={"type": "string", "format": "date-time"})
    assert takes(moment, '"2024-02-29T23:59:59.5+01:00"') and not takes(moment, '"2023-02-29T00:00:00Z"')


def test_whitespace_in_json() -> None:
    schema = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    value = [{"a": 1}, {"a": 2}]
    spaced, compact, indented = json.dumps(value), json.dumps(value, separators=(",", ":")), json.dumps(value, indent=1)
    for fields, accepted in (
        ({}, {spaced}),
        ({"disable_any_whitespace": True}, {compact}),
        ({"whitespace_pattern": r"[ \n]{0,9}"}, {spaced, compact, indented}),
    ):
        form = of(json=schema, **fields)
        assert {text for text in (spaced, compact, indented) if takes(form, text)} == accepted


CITY: Form = Json(
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    JsonStyle(),
)


def test_free_text_until_a_tag_opens() -> None:
    opened_by = (("<tool_call>", Chain((Text("\n"), CITY, Text("\n</tool_call>")))),)
    form, once = compiled(Tags(opened_by)), compiled(Tags(opened_by, required=True, several=False))
    call = '<tool_call>\n{"city": "Paris"}\n</tool_call>'
    assert takes(form, "Hello <tool there>.") and takes(form, f"I look. {call} and {call} done")
    assert not takes(form, "<tool_call>nonsense") and not takes(form, f"{call} <tool_call>")
    assert takes(once, call) and not takes(once, "Hello") and not takes(once, call + call)


def test_a_marker_may_be_a_special_token_and_text_never_is() -> None:
    assert takes(compiled(Chain((Marker("a<|call|>b"), Text("c")))), "a<|call|>bc")
    assert not takes(compiled(Text("<|call|>")), "<|call|>")
    assert takes(compiled(Tags((("<|call|>", CITY),))), 'now <|call|>{"city": "x"} there')


def test_repetitions() -> None:
    form = compiled(Repeat(Text("ab"), ", ", at_least=2, at_most=3))
    assert [takes(form, ", ".join(["ab"] * count)) for count in range(1, 5)] == [False, True, True, False]
    assert takes(compiled(Repeat(Text("ab"), at_least=0)), "") and takes(compiled(Repeat(Text("ab"))), "ababab")


def test_reasoning_comes_before_the_form() -> None:
    after = Chain((FreeUntil("</think>"), Regex(r"\s{0,2}"), CITY))
    assert takes(compiled(after), 'Well, {"city"? </thin</think>\n\n{"city": "x"}')
    assert not takes(compiled(after), '{"city": "x"}')
    either = compiled(OneOf((Chain((Marker("<think>"), after)), CITY)))
    assert takes(either, '<think>hm</think>{"city": "x"}') and takes(either, '{"city": "x"}')
    assert not takes(either, 'hm</think>{"city": "x"}')


def test_structural_tags_in_both_spellings() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    flat = {"triggers": ["<f="], "structures": [{"begin": "<f=x>", "schema": schema, "end": "</f>"}]}
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"begin": "<f=x>", "content": content, "end": "</f>"}
    nested = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f="], "tags": [tag]}}
    for given in (flat, json.dumps(flat), nested):
        form = of(structural_tag=given)
        assert takes(form, 'so <f=x>{"a": 1}</f> it is') and takes(form, "nothing")
        assert not takes(form, "so <f=y>") and not takes(form, 'so <f=x>{"a": "1"}</f>')
    parts = [{"type": "const_string", "value": "A "}, {"type": "regex", "pattern": "[0-9]+"}, {"type": "any_text"}]
    assert takes(of(structural_tag={"format": {"type": "sequence", "elements": parts}}), "A 12 apples")


def test_forced_tokens_are_the_tokenizer_s_own() -> None:
    matcher = of(json={"type": "object", "properties": {"name": {"const": "Ada"}}, "required": ["name"]}).matcher()
    forced = matcher.forced()
    assert (
        list(forced) == TOKENIZER.encode('{"name": "Ada"', add_special_tokens=False)[: len(forced)] and len(forced) > 1
    )
    matcher.accept_all(())
    assert matcher.forced() == forced
    matcher.accept_all(forced[:1])
    assert matcher.forced() == forced[1:]
    assert matcher.allows(forced[1]) and not matcher.allows(forced[0])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_masks_of_many_answers_at_once(threads: int) -> None:
    matchers = [of(choice=[f"{letter} it is"]).matcher() for letter in "abcdefghij"]
    together = [bytes(mask) for mask in MaskComputer(VOCAB_SIZE, threads).compute(matchers)]
    assert together == [bytes(MASKS.compute([matcher])[0]) for matcher in matchers]
    assert all(len(mask) == -(-VOCAB_SIZE // 32) * 4 for mask in together)
    letters = [TOKENIZER.token_bytes(allowed(matcher)[0])[:1] for matcher in matchers]
    assert b"".join(letters) == b"abcdefghij"


def test_answers_of_one_form_do_not_share_their_state() -> None:
    form = of(choice=["yes", "no"])
    first, second = form.matcher(), form.matcher()
    (yes,) = TOKENIZER.encode("y", add_special_tokens=False)
    first.accept(yes)
    assert allowed(first) != allowed(second) and allowed(second) == allowed(form.matcher())


def test_a_token_that_is_not_allowed_ends_the_answer() -> None:
    matcher = of(choice=["yes"]).matcher()
    with pytest.raises(InvalidValueError, match="cannot follow its form") as refused:
        matcher.accept(TOKENIZER.encode("n", add_special_tokens=False)[0])
    assert "yes" not in str(refused.value)


def test_limits_may_be_written_with_a_point() -> None:
    """JSON Schema takes 2.0 for an integer, wherever a schema lies."""
    schema = {"type": "array", "minItems": 2.0, "maxItems": 2.0, "items": {"$ref": "#/$defs/word"},
              "$defs": {"word": {"type": "string", "minLength": 1.0, "maxLength": 3e0}}}  # fmt: skip
    assert takes(of(json=schema), '["a", "abc"]')
    for refused in ('["a"]', '["a", "abcd"]', '["", "a"]', '["a", "b", "c"]'):
        assert not takes(of(json=schema), refused)
    for limit in (2.5, -1.0, "2", float(2**70)):
        with pytest.raises(InvalidValueError, match="minItems is"):
            of(json={"type": "array", "minItems": limit})


def test_compiled_forms_are_kept_and_bounded() -> None:
    compiler = GrammarCompiler(TOKENIZER, VOCAB_SIZE)
    first = compiler.compile(Text("first"), "x")
    assert compiler.compile(Text("first"), "y").library is first.library
    for index in range(MAX_CACHED):
        compiler.compile(Text(str(index)), "x")
    assert compiler.compile(Text("first"), "x").library is not first.library


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one"),
        ({"regex": "a", "choice": ["a"]}, "regex and choice"),
        ({"json_object": False}, "exactly one"),
        ({"choice": []}, "choice"),
        ({"choice": "yes"}, "choice"),
        ({"choice": ["yes", 1]}, r"choice\[1\]"),
        ({"regex": 5}, "regex"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": "[" * 100_000}, "not valid JSON"),
        ({"json": [1]}, "json"),
        ({"json": "3"}, "json"),
        ({"structural_tag": 5}, "structural_tag"),
        ({"grammar": ["a"]}, "grammar"),
    ],
)
def test_parameters_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as refused:
        StructuredOutputsParams(**fields)
    assert refused.value.param is not None and refused.value.param.startswith("structured_outputs")
