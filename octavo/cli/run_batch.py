"""octavo run-batch"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.flags import EngineFlags, Model, model_or_default
from octavo.cli.parser_flags import ReasoningParser, ToolCallParser
from octavo.cli.served_names import ServedModelName, served_names


def run_batch(
    *,
    engine: EngineFlags,
    model: Model = None,
    input_file: Annotated[
        Path,
        typer.Option(
            "--input-file", "-i", exists=True, dir_okay=False, help="OpenAI batch file to answer.", show_default=False
        ),
    ],
    output_file: Annotated[
        Path,
        typer.Option(
            "--output-file",
            "-o",
            dir_okay=False,
            help="Where the answers go; lines that have one there already are passed over.",
            show_default=False,
        ),
    ],
    served_model_name: ServedModelName = None,
    tool_call_parser: ToolCallParser = None,
    reasoning_parser: ReasoningParser = None,
) -> None:
    """Answer a file of requests, without a server.

    Each line is {"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}. What a server would
    refuse is answered with its error, and a line that is no request with one of its own. May be interrupted and run
    again. Exit status: 0 if every line of the output is a good answer, 1 if some are errors, 130 after Ctrl-C.
    """
    import asyncio

    from octavo.chat.format import ChatParsers
    from octavo.cli.progress import ProgressReport
    from octavo.engine.async_engine import AsyncEngine
    from octavo.engine.build import build_engine
    from octavo.metrics.totals import EngineTotals
    from octavo.server.batch_done import BatchFiles
    from octavo.server.run_batch import run_batch as answer_batch
    from octavo.server.settings import ServerSettings

    parsers = ChatParsers(tool_call_parser, reasoning_parser)
    files = BatchFiles.open(input_file, output_file)
    reference = model_or_default(model)
    names = served_names(reference, served_model_name)
    totals = EngineTotals()
    with ProgressReport() as progress:
        built = build_engine(engine.args(reference), progress=progress, listeners=(totals,))
    settings = ServerSettings(names, parsers=parsers)
    show = sys.stderr.isatty()
    try:
        counts = asyncio.run(answer_batch(AsyncEngine(built), settings, totals, files, show=show))
    except KeyboardInterrupt:
        print("Interrupted; run it again to go on.", file=sys.stderr)
        raise typer.Exit(130) from None
    written = f"{counts.num_answered} answered, {counts.num_failed} failed"
    print(f"{counts.num_written} lines written to {output_file}: {written}", file=sys.stderr)
    if counts.num_failed_in_all:
        print(
            f"{counts.num_failed_in_all} of all lines there are errors: those whose response.status_code is not 200, "
            "or whose error is not null",
            file=sys.stderr,
        )
        raise typer.Exit(1)
