"""octavo bench"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.flags import EngineFlags, Model, model_or_default

JsonOut = Annotated[
    Path | None, typer.Option("--json", dir_okay=False, help="Write the figures here too.", show_default=False)
]


def throughput(
    *,
    engine: EngineFlags,
    model: Model = None,
    workload: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help='JSON lines {"prompt_token_ids": [...], "max_tokens": n}.',
            show_default=False,
        ),
    ],
    json_out: JsonOut = None,
) -> None:
    """Tokens a second of many requests given at once.

    Greedy; the end of text is ignored.
    """
    from octavo.cli.measure import measure_throughput

    measure_throughput(engine.args(model_or_default(model)), workload, json_out)


def latency(
    *,
    engine: EngineFlags,
    model: Model = None,
    input_len: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 32,
    output_len: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 1,
    num_runs: Annotated[int, typer.Option(min=1, help="The median of so many runs counts.")] = 5,
    json_out: JsonOut = None,
) -> None:
    """Time to the first token and between tokens.

    Random prompts; greedy; the end of text is ignored.
    """
    from octavo.cli.measure import LatencySettings, measure_latency

    settings = LatencySettings(input_len, output_len, batch_size, num_runs)
    measure_latency(engine.args(model_or_default(model)), settings, json_out)
