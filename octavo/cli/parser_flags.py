"""How the model writes calls and reasoning, named instead of found: flags of the verbs that read answers."""

from __future__ import annotations

from typing import Annotated

import typer

_CHAT = "Chat"

ToolCallParser = Annotated[
    str | None,
    typer.Option(
        "--tool-call-parser",
        metavar="NAME",
        help="How the model writes calls of tools: hermes, llama3_json, mistral, mistral_args, fenced_json or "
        "generic_json. Default: as its chat template says.",
        show_default=False,
        rich_help_panel=_CHAT,
    ),
]
ReasoningParser = Annotated[
    str | None,
    typer.Option(
        "--reasoning-parser",
        metavar="NAME",
        help="How the model marks its reasoning: think, deepseek_r1, qwen3, mistral, ...; none: not at all. "
        "Default: as its chat template says.",
        show_default=False,
        rich_help_panel=_CHAT,
    ),
]
