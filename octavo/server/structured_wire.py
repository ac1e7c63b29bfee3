"""The fields that ask for an answer of a certain form: OpenAI's, vLLM's, and the names vLLM had for them before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from octavo.errors import InvalidValueError, RequestError
from octavo.server import unsupported
from octavo.server.wire import Array, SamplingFields, WireModel
from octavo.structured_outputs import StructuredOutputsParams

_FORMAT_TYPES = ("text", "json_object", "json_schema")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class JsonSchemaFormat(WireModel):
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(WireModel):
    type: str
    json_schema: JsonSchemaFormat | None = None
    json_object_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class StructuredOutputs(WireModel):
    json_value: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Array[str] | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None


class StructuredFields(SamplingFields):
    """What both endpoints accept. At most one of them may ask for a form."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: Array[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None

    @property
    def form_field(self) -> str | None:
        """The field that asks for a form. Raises `InvalidValueError` if several do."""
        formats = {
            "response_format": self.response_format is not None and self.response_format.type != "text",
            "structured_outputs": self.structured_outputs is not None,
            **{name: getattr(self, name) is not None for name in _GUIDED},
        }
        asking = [name for name, asks in formats.items() if asks]
        if len(asking) > 1:
            raise InvalidValueError(f"{' and '.join(asking)} both ask for a form; give one of them", param=asking[1])
        return asking[0] if asking else None

    def renamed(self, error: RequestError) -> RequestError:
        """The error, which names a form by vLLM's name for it, with the names that this request uses."""
        if error.param is None or not error.param.startswith("structured_outputs"):
            return error
        return type(error)(self.name_of(str(error)), param=self.name_of(error.param), code=error.code)

    def name_of(self, text: str) -> str:
        """A field of `StructuredOutputsParams`, or a text that names some, as this request calls them."""
        for known, name in self._names().items():
            text = re.sub(rf"structured_outputs\.{known}\b", name, text)
        return text

    def _names(self) -> Mapping[str, str]:
        field = self.form_field
        if field in _GUIDED:
            return {_GUIDED[field]: field, "whitespace_pattern": "guided_whitespace_pattern"}
        if field == "response_format":
            assert self.response_format is not None
            schema = "json_schema.schema" if self.response_format.type == "json_schema" else "schema"
            return {"json": f"{field}.{schema}", "json_object": field, "structural_tag": field}
        return {}

    def form_params(self, *, strict: bool) -> StructuredOutputsParams | None:
        """The form the answer must have. Raises a `RequestError` for a field that is malformed."""
        field = self.form_field
        if self.guided_whitespace_pattern is not None and field not in _GUIDED:
            raise InvalidValueError(
                "guided_whitespace_pattern may be given only with guided_json", param="guided_whitespace_pattern"
            )
        if field is None:
            if self.response_format is not None:
                _check_response_format(self.response_format, strict=strict)
            return None
        if field == "response_format":
            assert self.response_format is not None
            return _of_response_format(self.response_format, strict=strict)
        if field == "structured_outputs":
            assert self.structured_outputs is not None
            return _of_structured_outputs(self.structured_outputs, strict=strict)
        form: dict[str, Any] = {_GUIDED[field]: getattr(self, field)}
        return StructuredOutputsParams(**form, whitespace_pattern=self.guided_whitespace_pattern)


_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}


def _check_response_format(given: ResponseFormat, *, strict: bool) -> None:
    unsupported.check_undeclared(given.undeclared(), unsupported.RESPONSE_FORMAT, "response_format", strict=strict)
    for name, value, kind in (
        ("json_schema", given.json_schema, "json_schema"),
        ("schema", given.json_object_schema, "json_object"),
    ):
        if value is not None and given.type in _FORMAT_TYPES and given.type != kind:
            raise InvalidValueError(
                f"response_format.{name} is given, but response_format.type is {given.type!r}; it must be {kind!r}",
                param=f"response_format.{name}",
            )
    if given.json_schema is not None:
        unsupported.check_undeclared(given.json_schema.undeclared(), {}, "response_format.json_schema", strict=strict)


def _of_response_format(given: ResponseFormat, *, strict: bool) -> StructuredOutputsParams:
    if given.type == "structural_tag":
        return StructuredOutputsParams(structural_tag={"type": given.type, **given.undeclared()})
    _check_response_format(given, strict=strict)
    if given.type == "json_object":
        schema = given.json_object_schema
        return StructuredOutputsParams(json_object=True) if schema is None else StructuredOutputsParams(json=schema)
    if given.type == "json_schema":
        return StructuredOutputsParams(json=_schema_of(given))
    raise InvalidValueError(
        f"response_format.type is {given.type[:100]!r}; it must be text, json_object, json_schema or structural_tag",
        param="response_format.type",
    )


def _schema_of(given: ResponseFormat) -> dict[str, Any] | bool:
    path = "response_format.json_schema"
    described = given.json_schema
    if described is None:
        raise InvalidValueError(f"{path} is missing", param=path, code="missing_required_parameter")
    if described.name is not None and _NAME.fullmatch(described.name) is None:
        raise InvalidValueError(
            f"{path}.name is {described.name[:100]!r}; it must have 1 to 64 letters, digits, _ or -",
            param=f"{path}.name",
        )
    if described.json_schema is None and described.strict:
        raise InvalidValueError(
            f"{path}.schema is missing; strict is true, so there must be one to keep to",
            param=f"{path}.schema",
            code="missing_required_parameter",
        )
    return {} if described.json_schema is None else described.json_schema


def _of_structured_outputs(given: StructuredOutputs, *, strict: bool) -> StructuredOutputsParams:
    unsupported.check_undeclared(
        given.undeclared(), unsupported.STRUCTURED_OUTPUTS, "structured_outputs", strict=strict
    )
    return StructuredOutputsParams(
        json=given.json_value,
        json_object=given.json_object,
        regex=given.regex,
        choice=given.choice,
        grammar=given.grammar,
        structural_tag=given.structural_tag,
        whitespace_pattern=given.whitespace_pattern,
        disable_any_whitespace=given.disable_any_whitespace is True,
    )
