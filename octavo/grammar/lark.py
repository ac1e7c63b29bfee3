"""Forms written in the grammar language of llguidance: Lark with JSON Schemas in it.

Source: docs/syntax.md of llguidance. A rule whose head has [lazy] ends at its first match, so free text stops at the
first trigger and what follows is enforced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.grammar.dates import with_real_dates
from octavo.grammar.forms import (
    Chain,
    Form,
    FreeUntil,
    Grammar,
    Json,
    JsonStyle,
    Marker,
    OneOf,
    Regex,
    Repeat,
    Tags,
    Text,
)
from octavo.grammar.subschemas import changed
from octavo.grammar.whole_numbers import with_whole_limits

_ANYTHING = r"/(.|\n)*/"


def to_grammar(form: Form, special_ids: Mapping[str, int]) -> str:
    """The definition of `form`. `special_ids` are the special tokens by their text: they match no other text."""
    writer = _Writer(special_ids)
    start = writer.expression(form)
    lark = "\n".join(["%llguidance {}", f"start: {start}", *writer.rules])
    grammars: list[dict[str, Any]] = [{"lark_grammar": lark}, *writer.grammars]
    return json.dumps({"grammars": grammars})


class _Writer:
    """Collects the rules that a form needs besides its own expression."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self._special_ids = special_ids
        texts = sorted(special_ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None
        self.rules: list[str] = []
        self.grammars: list[dict[str, Any]] = []

    def expression(self, form: Form) -> str:
        match form:
            case Text(text):
                return _quoted(text)
            case Marker(text):
                return self._marker(text)
            case Json(schema, style):
                return f"%json {json.dumps(styled(schema, style))}"
            case Regex(pattern):
                return self._regex(pattern)
            case Grammar(lark):
                return self._side(lark)
            case Chain(parts):
                return " ".join(self.expression(part) for part in parts)
            case OneOf(options):
                return self._rule(" | ".join(self.expression(option) for option in options))
            case Repeat():
                return self._repeat(form)
            case FreeUntil(end):
                return self._free_until(end)
            case Tags():
                return self._tags(form)

    def _rule(self, expression: str) -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name

    def _marker(self, text: str) -> str:
        """Quoted text, with special tokens in it named by their id."""
        pieces: list[str] = []
        position = 0
        for match in self._special.finditer(text) if self._special else ():
            pieces += [text[position : match.start()], match[0]]
            position = match.end()
        pieces.append(text[position:])
        return " ".join(self._token(piece) or _quoted(piece) for piece in pieces if piece) or _quoted("")

    def _token(self, text: str) -> str | None:
        token_id = self._special_ids.get(text)
        return None if token_id is None else f"<[{token_id}]>"

    def _regex(self, pattern: str) -> str:
        """A grammar of its own, so that no character of the pattern can be taken for Lark."""
        from llguidance import LLMatcher

        return self._side(json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"])

    def _side(self, lark: str) -> str:
        name = f"g{len(self.grammars)}"
        self.grammars.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def _repeat(self, form: Repeat) -> str:
        item = self._rule(self.expression(form.item))
        several = item if form.at_most == 1 else self._several(item, form)
        return several if form.at_least else f"({several})?"

    def _several(self, item: str, form: Repeat) -> str:
        following = self._rule(f"{self._marker(form.separator)} {item}")
        most = "" if form.at_most is None else form.at_most - 1
        return self._rule(f"{item} {following}{{{max(form.at_least - 1, 0)},{most}}}")

    def _free_until(self, end: str) -> str:
        special = self._special.match(end) if self._special else None
        if special is not None:
            return f"{_ANYTHING} {self._marker(end)}"
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}[lazy]: {_ANYTHING} {_quoted(end)}")
        return name

    def _tags(self, form: Tags) -> str:
        tags = [f"{self._free_until(marker)} {self.expression(body)}" for marker, body in form.opened_by]
        if not form.several:
            return self._rule(" | ".join(tags if form.required else [*tags, _ANYTHING]))
        return f"{self._rule(' | '.join(tags) or _quoted(''))}{'+' if form.required else '*'} {_ANYTHING}"


def styled(schema: Mapping[str, Any] | bool, style: JsonStyle) -> dict[str, Any]:
    """The schema with our way of writing JSON in place of any it asks for, and nothing in it ignored."""
    fields = changed(schema, _enforceable) if isinstance(schema, Mapping) else {}
    return {**fields, "x-guidance": _options(style)}


def _enforceable(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return with_real_dates(with_whole_limits(schema))


def _options(style: JsonStyle) -> dict[str, Any]:
    options: dict[str, Any] = {"lenient": style.lenient, "coerce_one_of": style.lenient}
    if style.whitespace_pattern is not None:
        return options | {"item_separator": ",", "key_separator": ":", "whitespace_pattern": style.whitespace_pattern}
    separators = {"item_separator": style.item_separator, "key_separator": style.key_separator}
    return options | separators | {"whitespace_flexible": False}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
