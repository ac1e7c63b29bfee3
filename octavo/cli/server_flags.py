"""The flags that say where `octavo serve` listens, how strictly it reads requests and what it logs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from octavo.server.run import RunOptions

_SERVER = "Server"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """What the server decides for itself, but for whom it lets in."""

    host: Annotated[str, typer.Option("--host", help="Address to listen on.", rich_help_panel=_SERVER)] = "127.0.0.1"
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.", rich_help_panel=_SERVER
        ),
    ] = 8000
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            "--shutdown-timeout",
            min=0,
            help="Seconds that running requests may take to finish after SIGTERM.",
            rich_help_panel=_SERVER,
        ),
    ] = 30.0
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="json writes one object a line.", rich_help_panel=_SERVER)
    ] = LogFormat.TEXT
    enable_log_requests: Annotated[
        bool, typer.Option("--enable-log-requests", help="Log prompts and parameters.", rich_help_panel=_SERVER)
    ] = False
    disable_log_stats: Annotated[
        bool,
        typer.Option("--disable-log-stats", help="No line of activity every 10 s.", rich_help_panel=_SERVER),
    ] = False
    strict_fields: Annotated[
        bool,
        typer.Option(
            "--strict-fields/--no-strict-fields",
            help="Refuse request fields that nobody knows, rather than ignore them.",
            rich_help_panel=_SERVER,
        ),
    ] = True
    trust_request_chat_template: Annotated[
        bool,
        typer.Option(
            "--trust-request-chat-template",
            help="Take chat templates from requests. Templates are programs.",
            rich_help_panel=_SERVER,
        ),
    ] = False
    uvicorn_log_level: Annotated[
        LogLevel, typer.Option("--uvicorn-log-level", help="info logs every HTTP request.", rich_help_panel=_SERVER)
    ] = LogLevel.WARNING

    def options(self) -> RunOptions:
        from octavo.server.run import LOG_STATS_INTERVAL_S, RunOptions

        return RunOptions(
            shutdown_timeout_s=self.shutdown_timeout,
            log_stats_interval_s=None if self.disable_log_stats else LOG_STATS_INTERVAL_S,
            uvicorn_log_level=self.uvicorn_log_level.value,
        )
