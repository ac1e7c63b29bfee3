"""The formats there are, and which one a chat template asks for."""

from __future__ import annotations

from collections.abc import Callable

from octavo.errors import ConfigError
from octavo.tools import hermes, llama3_json, mistral, mistral_args
from octavo.tools.fenced_json import FENCED_JSON
from octavo.tools.format import ToolFormat
from octavo.tools.generic_json import GENERIC_JSON

_IN_TEMPLATES: tuple[tuple[ToolFormat, Callable[[str], bool]], ...] = (
    (mistral_args.MISTRAL_ARGS, mistral_args.writes),
    (mistral.MISTRAL, mistral.writes),
    (hermes.HERMES, hermes.writes),
    (llama3_json.LLAMA3_JSON, llama3_json.writes),
)
_NAMED_ONLY = (FENCED_JSON, GENERIC_JSON)
TOOL_PARSERS = {each.name: each for each in (*(found for found, _ in _IN_TEMPLATES), *_NAMED_ONLY)}


def tool_format(name: str) -> ToolFormat:
    """The format of that name. Raises `ConfigError` naming the known ones."""
    found = TOOL_PARSERS.get(name)
    if found is None:
        raise ConfigError(f"--tool-call-parser is {name!r}; known: {', '.join(sorted(TOOL_PARSERS))}")
    return found


def format_in(template: str) -> ToolFormat:
    """The format that a chat template's source speaks of; the generic one if it speaks of none that is known."""
    return next((tool_format for tool_format, writes in _IN_TEMPLATES if writes(template)), GENERIC_JSON)
