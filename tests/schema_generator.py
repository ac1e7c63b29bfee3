"""Schemas as people write them: nested and recursive, with enumerations, patterns, bounds and formats.

Drawn from a seed, so that tests and benchmarks speak of the same ones. Texts and lists are bounded, so that even a
model that rambles comes to an end.
"""

from __future__ import annotations

import random
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator

Schema = dict[str, Any]

_NAMES = (
    "name", "title", "description", "status", "priority", "owner", "created_at", "tags", "items", "amount", "currency",
    "quantity", "address", "street", "city", "zip", "email", "phone", "url", "score", "größe", "名前", "steps",
)  # fmt: skip
_ENUMS: tuple[list[Any], ...] = (
    ["low", "medium", "high"],
    ["café", "naïve", "Übermut", "日本", "🙂"],
    ["EUR", "USD", "JPY", None],
    [1, 2, 3, 5, 8],
    ['say "hi"', "tab\there", "back\\slash", "a/b"],
    [True, "maybe", 0.5],
)
_PATTERNS = (
    r"^[A-Z]{3}-[0-9]{4}$",
    r"^(\+[0-9]{1,3} )?[0-9]{3,10}$",
    r"^#[0-9a-f]{6}$",
    r"^v[0-9]+\.[0-9]+\.[0-9]+$",
    r"^[a-z][a-z0-9_]{0,15}$",
    r"^(red|green|blue)(-dark)?$",
)
_FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "hostname", "uri")


def realistic_schemas(count: int, seed: int = 0) -> list[Schema]:
    return [schema_of(random.Random(seed * 100_003 + index)) for index in range(count)]


def schema_of(rng: random.Random) -> Schema:
    root = _object(rng, depth=rng.choice((1, 2, 2, 3)))
    if rng.random() < 0.3:
        root = _with_tree(root, rng)
    if rng.random() < 0.3:
        root = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Answer", **root}
    return root


def validator_of(schema: Schema) -> Validator:
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_NAMES, rng.randint(1, 4))
    required = [name for name in names if rng.random() < 0.7]
    schema: Schema = {"type": "object", "properties": {name: _value(rng, depth - 1) for name in names}}
    if required:
        schema["required"] = required
    if rng.random() < 0.9:
        schema["additionalProperties"] = False
    return schema


def _value(rng: random.Random, depth: int) -> Schema:
    if depth > 0 and rng.random() < 0.4:
        return _object(rng, depth)
    if depth > 0 and rng.random() < 0.4:
        return _array(rng, depth)
    kind = rng.choice((_text, _number, _integer, _enum, _pattern, _format, _nullable, _constant, _choice_of_types))
    return kind(rng)


def _array(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.2:
        return {"type": "array", "prefixItems": [_text(rng), _integer(rng)], "items": False, "minItems": 2}
    low = rng.randint(0, 2)
    return {"type": "array", "items": _value(rng, depth - 1), "minItems": low, "maxItems": low + rng.randint(0, 2)}


def _text(rng: random.Random) -> Schema:
    low = rng.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(5, 30)}


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-1000, 1000)
    bounds = ({}, {"minimum": low}, {"minimum": low, "maximum": low + rng.randint(0, 5000)}, {"exclusiveMaximum": low})
    multiple = {"multipleOf": rng.choice((5, 7))} if rng.random() < 0.1 else {}
    return {"type": "integer", **(multiple or rng.choice(bounds))}


def _number(rng: random.Random) -> Schema:
    low = round(rng.uniform(-100, 100), 2)
    bounds: tuple[Schema, ...] = ({"minimum": low, "maximum": low + 10}, {"exclusiveMinimum": 0, "maximum": 1})
    return {"type": "number", **rng.choice(bounds)}


def _enum(rng: random.Random) -> Schema:
    return {"enum": rng.choice(_ENUMS)}


def _pattern(rng: random.Random) -> Schema:
    return {"type": "string", "pattern": rng.choice(_PATTERNS)}


def _format(rng: random.Random) -> Schema:
    return {"type": "string", "format": rng.choice(_FORMATS)}


def _nullable(rng: random.Random) -> Schema:
    return rng.choice(({"type": ["string", "null"], "maxLength": 12}, {"anyOf": [_pattern(rng), {"type": "null"}]}))


def _constant(rng: random.Random) -> Schema:
    return {"const": rng.choice((1, "v1", None, [1, "ä"], {"kind": "point"}))}


def _choice_of_types(rng: random.Random) -> Schema:
    return {"anyOf": [_enum(rng), _integer(rng), {"type": "boolean"}]}


def _with_tree(root: Schema, rng: random.Random) -> Schema:
    """Adds a property that refers to a type that refers to itself."""
    node: Schema = {
        "type": "object",
        "properties": {
            "label": _pattern(rng),
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": rng.randint(1, 2)},
        },
        "required": ["label"],
        "additionalProperties": False,
    }
    properties = {**root["properties"], "tree": {"$ref": "#/$defs/node"}}
    return {**root, "properties": properties, "required": [*root.get("required", []), "tree"], "$defs": {"node": node}}
