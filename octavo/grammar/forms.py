"""The forms an answer can be asked to have, as values: what `lark.py` writes down for the grammar library.

A form is a text, a JSON value, a regular expression, a grammar of its own, or put together from forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly this text; may be empty. It is never a special token that is called so."""

    text: str


@dataclass(frozen=True, slots=True)
class Marker:
    """Exactly this text, where the text of a special token stands for that token."""

    text: str


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value that this schema accepts."""

    schema: Mapping[str, Any] | bool
    style: JsonStyle


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """What stands between the tokens of JSON: fixed separators, or whitespace that matches a pattern.

    `lenient`: keywords that cannot be enforced are passed over.
    """

    item_separator: str = ", "
    key_separator: str = ": "
    whitespace_pattern: str | None = None
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class Regex:
    """Any text that this regular expression matches from end to end."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """Any text of this grammar, in the Lark dialect of llguidance."""

    lark: str


@dataclass(frozen=True, slots=True)
class Chain:
    """One after the other."""

    parts: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any one of these."""

    options: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The item at least so often and, unless None, at most so often, with the separator, a marker, in between."""

    item: Form
    separator: str = ""
    at_least: int = 1
    at_most: int | None = None


@dataclass(frozen=True, slots=True)
class FreeUntil:
    """Free text up to the first `end`, a marker that belongs to it."""

    end: str


@dataclass(frozen=True, slots=True)
class Tags:
    """Free text in which each marker opens the form beside it, which must then follow.

    `required`: one must come. Unless `several` may, the first one ends everything.
    """

    opened_by: tuple[tuple[str, Form], ...]
    required: bool = False
    several: bool = True


Form = Text | Marker | Json | Regex | Grammar | Chain | OneOf | Repeat | FreeUntil | Tags
