"""What clients may call the model: a flag of the verbs that answer requests which name one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from octavo.errors import ConfigError

ServedModelName = Annotated[
    list[str] | None,
    typer.Option(
        "--served-model-name",
        help="What requests call the model; may be repeated. Default: as it was named here.",
        show_default=False,
        rich_help_panel="Server",
    ),
]


def served_names(reference: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """The names given; else the reference, and of a file its name without .gguf. Raises `ConfigError` for an empty."""
    if any(not name.strip() for name in given or ()):
        raise ConfigError("--served-model-name is empty; it must have at least one character, or leave it out")
    path = Path(reference)
    return tuple(given or ([path.stem, reference] if path.suffix == ".gguf" else [reference]))
