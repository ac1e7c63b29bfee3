"""octavo generate"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.flags import EngineFlags, Model, SamplingFlags, fresh_seed, model_or_default
from octavo.engine.choices import fan_out
from octavo.request import Request
from octavo.sampling_params import MAX_CHOICES
from octavo.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from octavo.cli.local_engine import LocalEngine


def generate(
    *,
    engine: EngineFlags,
    sampling: SamplingFlags,
    model: Model = None,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Text to continue. Default: what stdin has.", show_default=False),
    ] = None,
    n: Annotated[
        int,
        typer.Option(
            "--n",
            min=1,
            max=MAX_CHOICES,
            help="How many answers to the prompt, printed one after the other.",
            rich_help_panel="Sampling",
        ),
    ] = 1,
    json_schema: Annotated[
        Path | None,
        typer.Option(
            "--json-schema",
            exists=True,
            dir_okay=False,
            help="The answer is JSON that the schema in this file accepts.",
            show_default=False,
            rich_help_panel="Sampling",
        ),
    ] = None,
) -> None:
    """Continue a text."""
    from octavo.cli.local_engine import LocalEngine

    form = None if json_schema is None else StructuredOutputsParams(json=json_schema.read_text())
    params = replace(sampling.params(), n=n, structured_outputs=form)
    text = _stdin() if prompt is None else prompt
    with LocalEngine(engine.args(model_or_default(model), default_seed=fresh_seed())) as local:
        request = local.input.from_prompt(text, params)
        try:
            if n == 1:
                _print_as_it_comes(local, request)
            else:
                _print_answers(local, request)
        except KeyboardInterrupt:
            print()
            raise typer.Exit(130) from None


def _print_as_it_comes(local: LocalEngine, request: Request) -> None:
    try:
        with closing(local.stream(request)) as deltas:
            for delta in deltas:
                print(delta.text, end="", flush=True)
    except KeyboardInterrupt:
        print(local.rest(), end="")
        raise
    print()


def _print_answers(local: LocalEngine, request: Request) -> None:
    choices = fan_out(request)
    with closing(local.answers(choices)) as texts:
        for number, answer in enumerate(texts, 1):
            print(f"--- {number} of {len(choices)}\n{answer}", flush=True)


def _stdin() -> str:
    if sys.stdin.isatty():
        raise typer.BadParameter("give a text to continue, or pipe one in", param_hint="PROMPT")
    return sys.stdin.read().removesuffix("\n")
