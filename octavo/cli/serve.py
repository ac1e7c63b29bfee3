"""octavo serve"""

from __future__ import annotations

import logging
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.cross_origin import CrossOriginFlags
from octavo.cli.flags import EngineFlags, Model, model_or_default
from octavo.cli.parser_flags import ReasoningParser, ToolCallParser
from octavo.cli.scheduling_flags import SchedulingFlags
from octavo.cli.served_names import ServedModelName, served_names
from octavo.cli.sizes import parse_count
from octavo.errors import ConfigError
from octavo.server.api_keys import ApiKey, named_key, numbered_keys, read_keys

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


def serve(
    *,
    engine: EngineFlags,
    scheduling: SchedulingFlags,
    cross_origin: CrossOriginFlags,
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=_SERVER)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.", rich_help_panel=_SERVER)
    ] = 8000,
    served_model_name: ServedModelName = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="Require this key as bearer token; may be repeated.", show_default=False, rich_help_panel=_SERVER
        ),
    ] = None,
    api_keys_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="TOML file of named keys with weights and limits; see docs/scheduling.md.",
            show_default=False,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(
            help="Require this key for what changes the server for everybody, such as /reset_prefix_cache. "
            "Default: any API key.",
            show_default=False,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    max_prompt_len: Annotated[
        int | None,
        typer.Option(
            parser=parse_count,
            metavar="TOKENS",
            help="Longest prompt of a client whose key has no limit of its own. Default: what fits.",
            show_default=False,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    max_tokens_per_request: Annotated[
        int | None,
        typer.Option(
            parser=parse_count,
            metavar="TOKENS",
            help="The same for prompt and answer together. Default: what fits.",
            show_default=False,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds that running requests may take to finish after SIGTERM.", rich_help_panel=_SERVER
        ),
    ] = 30.0,
    log_format: Annotated[
        LogFormat, typer.Option(help="json writes one object a line.", rich_help_panel=_SERVER)
    ] = LogFormat.TEXT,
    enable_log_requests: Annotated[
        bool, typer.Option("--enable-log-requests", help="Log prompts and parameters.", rich_help_panel=_SERVER)
    ] = False,
    disable_log_stats: Annotated[
        bool,
        typer.Option("--disable-log-stats", help="No line of activity every 10 s.", rich_help_panel=_SERVER),
    ] = False,
    strict_fields: Annotated[
        bool,
        typer.Option(
            "--strict-fields/--no-strict-fields",
            help="Refuse request fields that nobody knows, rather than ignore them.",
            rich_help_panel=_SERVER,
        ),
    ] = True,
    trust_request_chat_template: Annotated[
        bool,
        typer.Option(
            "--trust-request-chat-template",
            help="Take chat templates from requests. Templates are programs.",
            rich_help_panel=_SERVER,
        ),
    ] = False,
    tool_call_parser: ToolCallParser = None,
    reasoning_parser: ReasoningParser = None,
    uvicorn_log_level: Annotated[
        LogLevel, typer.Option(help="info logs every HTTP request.", rich_help_panel=_SERVER)
    ] = LogLevel.WARNING,
) -> None:
    """Serve a model over the OpenAI API."""
    from octavo.chat.format import ChatParsers
    from octavo.server.listen import bind
    from octavo.server.logs import configure_logging

    _require_text("--api-key", api_key)
    _require_text("--admin-key", None if admin_key is None else [admin_key])
    parsers = ChatParsers(tool_call_parser, reasoning_parser)
    keys = _api_keys(api_key, api_keys_file)
    cors = cross_origin.settings()
    reference = model_or_default(model)
    names = served_names(reference, served_model_name)
    args = replace(
        scheduling.applied_to(engine.args(reference)),
        tenant_weights=tuple((key.name, key.weight) for key in keys if key.weight != 1.0),
    )
    configure_logging(log_format.value)
    with bind(host, port) as bound:
        from octavo.cli.progress import ProgressReport
        from octavo.engine.async_engine import AsyncEngine
        from octavo.engine.build import build_engine
        from octavo.metrics.totals import EngineTotals
        from octavo.server.run import LOG_STATS_INTERVAL_S, RunOptions
        from octavo.server.run import serve as run_server
        from octavo.server.settings import ServerSettings

        logging.getLogger(__name__).info("loading %s", reference)
        totals = EngineTotals()
        with ProgressReport() as progress:
            built = build_engine(args, progress=progress, listeners=(totals,), warm_up=True)
        settings = ServerSettings(
            served_model_names=names,
            api_keys=keys,
            admin_key=None if admin_key is None else named_key("admin", admin_key),
            log_requests=enable_log_requests,
            strict_fields=strict_fields,
            trust_request_chat_template=trust_request_chat_template,
            max_prompt_len=max_prompt_len,
            max_tokens_per_request=max_tokens_per_request,
            parsers=parsers,
            cors=cors,
        )
        options = RunOptions(
            shutdown_timeout_s=shutdown_timeout,
            log_stats_interval_s=None if disable_log_stats else LOG_STATS_INTERVAL_S,
            uvicorn_log_level=uvicorn_log_level.value,
        )
        code = run_server(AsyncEngine(built), settings, totals, bound, options)
    raise typer.Exit(code)


def _api_keys(keys: list[str] | None, file: Path | None) -> tuple[ApiKey, ...]:
    """The keys of the flags, then those of the file. Raises `ConfigError` for a name or a key that occurs twice."""
    found = numbered_keys(keys or ()) + (read_keys(file) if file is not None else ())
    for what in ([key.name for key in found], [key.digest for key in found]):
        if len(set(what)) < len(what):
            raise ConfigError("an API key, or the name of one, occurs twice in --api-key and --api-keys-file")
    return found


def _require_text(flag: str, values: list[str] | None) -> None:
    """An unset variable of a shell must not open the server to a key of no letters."""
    if any(not value.strip() for value in values or ()):
        raise ConfigError(f"{flag} is empty; it must have at least one character, or leave it out")
