"""Flags for browsers: which pages of other origins may call the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.errors import ConfigError
from octavo.json_text import parse_json

if TYPE_CHECKING:
    from octavo.server.settings import CrossOrigin

_PANEL = "Browsers"
_ANY = '["*"]'


@dataclass(frozen=True, slots=True)
class CrossOriginFlags:
    """Lists are JSON, as vLLM takes them."""

    allowed_origins: Annotated[
        str,
        typer.Option(
            metavar="JSON",
            help="Origins whose pages may call the server, such as '[\"https://a.example\"]' or '[\"*\"]'.",
            rich_help_panel=_PANEL,
        ),
    ] = "[]"
    allowed_methods: Annotated[
        str, typer.Option(metavar="JSON", help="Methods these pages may use.", rich_help_panel=_PANEL)
    ] = _ANY
    allowed_headers: Annotated[
        str, typer.Option(metavar="JSON", help="Headers these pages may send.", rich_help_panel=_PANEL)
    ] = _ANY
    allow_credentials: Annotated[
        bool, typer.Option("--allow-credentials", help="Take cookies from these pages.", rich_help_panel=_PANEL)
    ] = False

    def settings(self) -> CrossOrigin | None:
        """None if no page of another origin may call. Raises `ConfigError` naming the flag that is no list."""
        from octavo.server.settings import CrossOrigin

        origins = _texts("--allowed-origins", self.allowed_origins)
        methods = _texts("--allowed-methods", self.allowed_methods)
        headers = _texts("--allowed-headers", self.allowed_headers)
        return CrossOrigin(origins, methods, headers, self.allow_credentials) if origins else None


def _texts(flag: str, given: str) -> tuple[str, ...]:
    try:
        texts = parse_json(given)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{flag} is {given!r}; it must be a JSON list of texts, such as '{_ANY}'")
    return tuple(texts)
