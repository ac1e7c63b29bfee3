"""From what a request asks for to a form. Everything that can be refused without a tokenizer is refused here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.errors import InvalidValueError
from octavo.grammar.forms import Form, Grammar, Json, JsonStyle, OneOf, Regex, Text
from octavo.grammar.structural_tag import structural_tag_form
from octavo.structured_outputs import StructuredOutputsParams

MAX_DEFINITION_CHARACTERS = 512 * 1024
MAX_SCHEMA_DEPTH = 48
"""Of objects and arrays in each other. The grammar library refuses schemas a little deeper."""


def form_of(params: StructuredOutputsParams) -> Form:
    """The form. Raises `InvalidValueError` naming the field that is malformed or too large."""
    _check_size(params)
    style = json_style(params)
    match params.kind:
        case "json":
            assert isinstance(params.json, (Mapping, bool))
            if params.json is False:
                raise InvalidValueError(
                    "structured_outputs.json is false, which accepts no value", param="structured_outputs.json"
                )
            return Json(params.json, style)
        case "json_object":
            return Json({"type": "object"}, style)
        case "regex":
            assert params.regex is not None
            return Regex(params.regex)
        case "choice":
            assert params.choice is not None
            return OneOf(tuple(map(Text, params.choice)))
        case "grammar":
            assert params.grammar is not None
            return Grammar(_as_lark(params.grammar))
        case _:
            assert isinstance(params.structural_tag, Mapping)
            return structural_tag_form(params.structural_tag, style)


def json_style(params: StructuredOutputsParams) -> JsonStyle:
    if params.whitespace_pattern is not None:
        return JsonStyle(whitespace_pattern=params.whitespace_pattern)
    return JsonStyle(",", ":") if params.disable_any_whitespace else JsonStyle()


def _check_size(params: StructuredOutputsParams) -> None:
    param = f"structured_outputs.{params.kind}"
    value = getattr(params, params.kind)
    if _depth(value) > MAX_SCHEMA_DEPTH:
        raise InvalidValueError(f"{param} is nested more than {MAX_SCHEMA_DEPTH} deep", param=param)
    try:
        length = len(value) if isinstance(value, str) else len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"{param} is not JSON: {error}", param=param) from None
    if length > MAX_DEFINITION_CHARACTERS:
        raise InvalidValueError(
            f"{param} has {length} characters; at most {MAX_DEFINITION_CHARACTERS} are allowed", param=param
        )


def _depth(value: Any) -> int:
    """How deep objects and arrays lie in each other, counted a level at a time so that no depth overflows."""
    level, depth = [value], 0
    while level and depth <= MAX_SCHEMA_DEPTH:
        nested = [item for item in level if isinstance(item, (Mapping, list, tuple))]
        depth += bool(nested)
        level = [child for item in nested for child in (item.values() if isinstance(item, Mapping) else item)]
    return depth


def _as_lark(grammar: str) -> str:
    """Lark as it is; GBNF, known by its `::=`, translated."""
    if "::=" not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(grammar)
    except Exception as error:  # noqa: BLE001 - the translator raises whatever its recursive descent meets
        raise InvalidValueError(
            f"structured_outputs.grammar is not valid GBNF: {error}", param="structured_outputs.grammar"
        ) from None
