"""Structural tags: free text in which certain beginnings open a constrained part.

Both public spellings are read: the flat one, `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, and the
nested one of XGrammar, `{"format": {"type": ...}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo.errors import InvalidValueError, UnsupportedParameterError
from octavo.grammar.forms import Chain, Form, Grammar, Json, JsonStyle, Marker, OneOf, Regex, Tags

_PARAM = "structured_outputs.structural_tag"


def structural_tag_form(tag: Mapping[str, Any], style: JsonStyle) -> Form:
    """The form of a structural tag. Raises `InvalidValueError` or `UnsupportedParameterError` naming the key."""
    reader = _Reader(style)
    if "format" in tag:
        return reader.format(tag["format"], "format")
    return reader.structures(tag)


class _Reader:
    def __init__(self, style: JsonStyle) -> None:
        self._style = style
        self._readers: dict[str, Callable[[Mapping[str, Any], str], Form]] = {
            "const_string": lambda node, path: Marker(_text(node, "value", path)),
            "json_schema": lambda node, path: Json(_schema(node, "json_schema", path), style),
            "regex": lambda node, path: Regex(_text(node, "pattern", path)),
            "grammar": lambda node, path: Grammar(_text(node, "grammar", path)),
            "any_text": lambda node, path: Regex(r"(.|\n)*"),
            "sequence": lambda node, path: Chain(self._all(node, "elements", path)),
            "or": lambda node, path: OneOf(self._all(node, "elements", path)),
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
        }

    def structures(self, tag: Mapping[str, Any]) -> Form:
        triggers = _texts(tag, "triggers", "")
        parts: list[tuple[str, Form, str]] = [
            (_text(item, "begin", path), Json(_schema(item, "schema", path), self._style), _text(item, "end", path))
            for item, path in _objects(tag, "structures", "")
        ]
        return _opened(triggers, parts, required=False, several=True, path="structures")

    def format(self, node: Any, path: str) -> Form:
        if not isinstance(node, Mapping) or not isinstance(node.get("type"), str):
            raise _invalid(path, "must be an object with a type")
        read = self._readers.get(node["type"])
        if read is None:
            raise UnsupportedParameterError(
                f"{_PARAM}.{path}.type is {node['type']!r}; Octavo knows: {', '.join(self._readers)}", param=_PARAM
            )
        return read(node, path)

    def _all(self, node: Mapping[str, Any], key: str, path: str) -> tuple[Form, ...]:
        return tuple(self.format(item, where) for item, where in _objects(node, key, path))

    def _tag(self, node: Mapping[str, Any], path: str) -> Form:
        begin, end = Marker(_text(node, "begin", path)), Marker(_text(node, "end", path))
        return Chain((begin, self.format(node.get("content"), f"{path}.content"), end))

    def _triggered_tags(self, node: Mapping[str, Any], path: str) -> Form:
        parts: list[tuple[str, Form, str]] = []
        for item, where in _objects(node, "tags", path):
            content = self.format(item.get("content"), f"{where}.content")
            parts.append((_text(item, "begin", where), content, _text(item, "end", where)))
        required, several = bool(node.get("at_least_one")), not node.get("stop_after_first")
        return _opened(_texts(node, "triggers", path), parts, required=required, several=several, path=path)


def _opened(
    triggers: list[str], parts: list[tuple[str, Form, str]], *, required: bool, several: bool, path: str
) -> Tags:
    """Free text in which each trigger opens the parts that begin with it."""
    opened: dict[str, list[Form]] = {trigger: [] for trigger in triggers}
    for begin, content, end in parts:
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise _invalid(path, f"has the beginning {begin!r}, which starts with none of the triggers")
        opened[trigger].append(Chain((Marker(begin.removeprefix(trigger)), content, Marker(end))))
    for trigger, forms in opened.items():
        if not forms:
            raise _invalid(path, f"has the trigger {trigger!r}, which no beginning starts with")
    return Tags(tuple((trigger, OneOf(tuple(forms))) for trigger, forms in opened.items()), required, several)


def _objects(node: Mapping[str, Any], key: str, path: str) -> list[tuple[Mapping[str, Any], str]]:
    where = _join(path, key)
    items = node.get(key)
    if not isinstance(items, list) or not items or not all(isinstance(item, Mapping) for item in items):
        raise _invalid(where, "must be a list of one or more objects")
    return [(item, f"{where}[{index}]") for index, item in enumerate(items)]


def _texts(node: Mapping[str, Any], key: str, path: str) -> list[str]:
    items = node.get(key)
    if not isinstance(items, list) or not items or not all(isinstance(item, str) and item for item in items):
        raise _invalid(_join(path, key), "must be a list of one or more non-empty texts")
    return items


def _text(node: Mapping[str, Any], key: str, path: str) -> str:
    value = node.get(key)
    if not isinstance(value, str):
        raise _invalid(_join(path, key), "must be text")
    return value


def _schema(node: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any] | bool:
    value = node.get(key, True)
    if not isinstance(value, (Mapping, bool)):
        raise _invalid(_join(path, key), "must be a JSON Schema")
    return value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _invalid(path: str, problem: str) -> InvalidValueError:
    return InvalidValueError(f"{_PARAM}.{path} {problem}", param=_PARAM)
