"""The flags that say whom `octavo serve` serves first, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import typer

from octavo.cli.sizes import parse_count, parse_seconds
from octavo.config import EngineArgs

_SCHEDULING = "Scheduling"


class Policy(StrEnum):
    AUTO = "auto"
    FCFS = "fcfs"
    PRIORITY = "priority"
    FAIR = "fair"
    SHORTEST = "shortest"


@dataclass(frozen=True, slots=True)
class SchedulingFlags:
    """The fields of `EngineArgs` that the scheduler is built from."""

    scheduling_policy: Annotated[
        Policy,
        typer.Option(
            "--scheduling-policy",
            help="Who is served first. fair: the API key or user served least; fcfs: who came first; priority: the "
            "lowest priority; shortest: the shortest uncached prompt. auto is fair.",
            rich_help_panel=_SCHEDULING,
        ),
    ] = Policy.AUTO
    long_prefill_token_threshold: Annotated[
        int,
        typer.Option(
            "--long-prefill-token-threshold",
            min=0,
            metavar="TOKENS",
            help="A prompt with more tokens to compute is long: while others run, long prompts get at most so many "
            "tokens and a third of the time of a step. 0: no prompt is long.",
            rich_help_panel=_SCHEDULING,
        ),
    ] = 0
    max_num_partial_prefills: Annotated[
        int | None,
        typer.Option(
            "--max-num-partial-prefills",
            min=1,
            help="Prompts that may be partly computed at once. Default: any number.",
            show_default=False,
            rich_help_panel=_SCHEDULING,
        ),
    ] = None
    max_long_partial_prefills: Annotated[
        int | None,
        typer.Option(
            "--max-long-partial-prefills",
            min=1,
            help="Long prompts among them. Default: 1.",
            show_default=False,
            rich_help_panel=_SCHEDULING,
        ),
    ] = None
    target_ttft: Annotated[
        float | None,
        typer.Option(
            "--target-ttft",
            parser=parse_seconds,
            metavar="TIME",
            help="Time to the first token to aim for: 500ms, 2s; a number alone is seconds.",
            show_default=False,
            rich_help_panel=_SCHEDULING,
        ),
    ] = None
    target_tpot: Annotated[
        float | None,
        typer.Option(
            "--target-tpot",
            parser=parse_seconds,
            metavar="TIME",
            help="Mean time between tokens to aim for: 50ms, 0.05s; a number alone is seconds. Steps are kept short "
            "enough for it.",
            show_default=False,
            rich_help_panel=_SCHEDULING,
        ),
    ] = None
    max_num_queued_reqs: Annotated[
        int | None,
        typer.Option(
            "--max-num-queued-reqs",
            min=1,
            help="Requests that may wait; more are refused with status 503. Default: any number.",
            show_default=False,
            rich_help_panel=_SCHEDULING,
        ),
    ] = None
    max_num_queued_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-num-queued-tokens",
            parser=parse_count,
            metavar="TOKENS",
            help="Tokens of all requests that wait; more are refused with status 503. Default: any number.",
            show_default=False,
            rich_help_panel=_SCHEDULING,
        ),
    ] = None
    queue_timeout: Annotated[
        float | None,
        typer.Option(
            "--queue-timeout",
            parser=parse_seconds,
            metavar="TIME",
            help="A request that has waited so long (30s, 1min; a number alone is seconds) is given up with status "
            "503. Default: it waits.",
            show_default=False,
            rich_help_panel=_SCHEDULING,
        ),
    ] = None

    def applied_to(self, args: EngineArgs) -> EngineArgs:
        return replace(
            args,
            scheduling_policy=self.scheduling_policy.value,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            max_num_partial_prefills=self.max_num_partial_prefills,
            max_long_partial_prefills=self.max_long_partial_prefills,
            target_ttft_s=self.target_ttft,
            target_tpot_s=self.target_tpot,
            max_num_queued_reqs=self.max_num_queued_reqs,
            max_num_queued_tokens=self.max_num_queued_tokens,
            queue_timeout_s=self.queue_timeout,
        )
