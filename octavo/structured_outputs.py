"""What form an answer must have, as a request says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from octavo.errors import InvalidValueError
from octavo.json_text import parse_json

Schema = Mapping[str, Any] | bool | str

_OPTIONS = ("whitespace_pattern", "disable_any_whitespace")


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """Exactly one form; names and meanings are vLLM's.

    `json`: a JSON Schema, as an object or as JSON text. `json_object`: any JSON object. `regex`: the whole answer
    matches. `choice`: one of these texts. `grammar`: Lark or GBNF. `structural_tag`: free text in which certain
    beginnings open a constrained part, as an object or as JSON text.

    JSON is written as `json.dumps` does, a space after each colon and comma. `disable_any_whitespace` leaves even that
    out; `whitespace_pattern`, a regular expression, says what may stand between the tokens of JSON instead.

    Raises `InvalidValueError` naming the field.
    """

    json: Schema | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    structural_tag: Mapping[str, Any] | str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        kinds = [field.name for field in fields(self) if field.name not in _OPTIONS]
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none is given"
            raise InvalidValueError(
                f"structured_outputs must have exactly one of {', '.join(kinds)}; {found}", param="structured_outputs"
            )
        for kind in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, kind)
            if value is not None and not isinstance(value, str):
                raise _invalid(kind, "must be text")
        if self.choice is not None:
            object.__setattr__(self, "choice", _checked_choice(self.choice))
        for kind in ("json", "structural_tag"):
            value = getattr(self, kind)
            if isinstance(value, str):
                object.__setattr__(self, kind, _parsed(kind, value))
            elif value is not None and not isinstance(value, (Mapping, bool)):
                raise _invalid(kind, "must be an object or its JSON text")
        if given[0] in ("regex", "choice", "grammar"):
            self._refuse_options(given[0])

    def _refuse_options(self, kind: str) -> None:
        for option in _OPTIONS:
            if getattr(self, option):
                raise _invalid(option, f"says how JSON is written; it cannot be had together with {kind}")

    @property
    def param(self) -> str:
        """What errors call the field that is given."""
        return f"structured_outputs.{self.kind}"

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        return next(f.name for f in fields(self) if f.name not in _OPTIONS and getattr(self, f.name) is not None)


def _checked_choice(choice: Any) -> tuple[str, ...]:
    if isinstance(choice, (str, bytes)) or not isinstance(choice, Sequence) or not choice:
        raise _invalid("choice", "must be a list of one or more texts")
    for index, item in enumerate(choice):
        if not isinstance(item, str) or not item:
            raise _invalid(f"choice[{index}]", "must be non-empty text")
    return tuple(choice)


def _parsed(kind: str, text: str) -> Any:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise _invalid(kind, f"is not valid JSON: {error}") from None
    if not isinstance(value, (dict, bool)):
        raise _invalid(kind, "must be a JSON object")
    return value


def _invalid(field: str, problem: str) -> InvalidValueError:
    return InvalidValueError(f"structured_outputs.{field} {problem}", param=f"structured_outputs.{field}")
