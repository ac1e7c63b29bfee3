"""The flags that say whom `octavo serve` lets in, and how much they may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.sizes import parse_count
from octavo.errors import ConfigError
from octavo.server.api_keys import ApiKey, named_key, numbered_keys, read_keys

_ACCESS = "Access"


@dataclass(frozen=True, slots=True)
class AccessFlags:
    """Keys, and the limits of those who have none of their own."""

    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            help="Require this key as bearer token; may be repeated.",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = None
    api_keys_file: Annotated[
        Path | None,
        typer.Option(
            "--api-keys-file",
            exists=True,
            dir_okay=False,
            help="TOML file of named keys with weights and limits; see docs/scheduling.md.",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = None
    admin_key: Annotated[
        str | None,
        typer.Option(
            "--admin-key",
            help="Require this key for what changes the server for everybody, such as /reset_prefix_cache. "
            "Default: any API key.",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = None
    max_prompt_len: Annotated[
        int | None,
        typer.Option(
            "--max-prompt-len",
            parser=parse_count,
            metavar="TOKENS",
            help="Longest prompt of a client whose key has no limit of its own. Default: what fits.",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = None
    max_tokens_per_request: Annotated[
        int | None,
        typer.Option(
            "--max-tokens-per-request",
            parser=parse_count,
            metavar="TOKENS",
            help="The same for prompt and answer together. Default: what fits.",
            show_default=False,
            rich_help_panel=_ACCESS,
        ),
    ] = None

    def keys(self) -> tuple[ApiKey, ...]:
        """The keys of the flags, then those of the file. Raises `ConfigError` for a name or a key that occurs twice."""
        _require_text("--api-key", self.api_key or ())
        found = numbered_keys(self.api_key or ()) + (read_keys(self.api_keys_file) if self.api_keys_file else ())
        for what in ([key.name for key in found], [key.digest for key in found]):
            if len(set(what)) < len(what):
                raise ConfigError("an API key, or the name of one, occurs twice in --api-key and --api-keys-file")
        return found

    def admin(self) -> ApiKey | None:
        """The key for what changes the server for everybody, if there is one of its own."""
        if self.admin_key is None:
            return None
        _require_text("--admin-key", (self.admin_key,))
        return named_key("admin", self.admin_key)


def _require_text(flag: str, values: Sequence[str]) -> None:
    """An unset variable of a shell must not open the server to a key of no letters."""
    if any(not value.strip() for value in values):
        raise ConfigError(f"{flag} is empty; it must have at least one character, or leave it out")
