"""Help and usage errors in plain text.

Rich takes as long to import as all the rest (0.1 s), and on a terminal of 80 columns it cuts the names of flags.
"""

from __future__ import annotations

from typing import Any

import typer.core


class PlainGroup(typer.core.TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"rich_markup_mode": None})


class PlainCommand(typer.core.TyperCommand):
    """Its flags are listed under the headings they were declared with (`rich_help_panel`)."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings | {"rich_markup_mode": None})

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_heading(param), []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _heading(param: object) -> str:
    if isinstance(param, typer.core.TyperOption):
        return param.rich_help_panel or "Options"
    return "Arguments"
