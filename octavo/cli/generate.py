"""octavo generate"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated

import typer

from octavo.cli.flags import EngineFlags, Model, SamplingFlags, fresh_seed, model_or_default


def generate(
    *,
    engine: EngineFlags,
    sampling: SamplingFlags,
    model: Model = None,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Text to continue. Default: what stdin has.", show_default=False),
    ] = None,
) -> None:
    """Continue a text."""
    from octavo.cli.local_engine import LocalEngine

    params = sampling.params()
    text = _stdin() if prompt is None else prompt
    with LocalEngine(engine.args(model_or_default(model), default_seed=fresh_seed())) as local:
        request = local.input.from_prompt(text, params)
        try:
            with closing(local.stream(request)) as deltas:
                for delta in deltas:
                    print(delta.text, end="", flush=True)
        except KeyboardInterrupt:
            print()
            raise typer.Exit(130) from None
    print()


def _stdin() -> str:
    if sys.stdin.isatty():
        raise typer.BadParameter("give a text to continue, or pipe one in", param_hint="PROMPT")
    return sys.stdin.read().removesuffix("\n")
