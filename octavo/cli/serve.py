"""octavo serve"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from octavo.cli.access_flags import AccessFlags
from octavo.cli.cross_origin import CrossOriginFlags
from octavo.cli.flags import EngineFlags, Model, model_or_default
from octavo.cli.parser_flags import ReasoningParser, ToolCallParser
from octavo.cli.scheduling_flags import SchedulingFlags
from octavo.cli.served_names import ServedModelName, served_names
from octavo.cli.server_flags import ServerFlags
from octavo.config import EngineArgs

if TYPE_CHECKING:
    import socket

    from octavo.server.run import RunOptions
    from octavo.server.settings import ServerSettings


def serve(
    *,
    engine: EngineFlags,
    scheduling: SchedulingFlags,
    server: ServerFlags,
    served_model_name: ServedModelName = None,
    access: AccessFlags,
    cross_origin: CrossOriginFlags,
    tool_call_parser: ToolCallParser = None,
    reasoning_parser: ReasoningParser = None,
    model: Model = None,
) -> None:
    """Serve a model over the OpenAI API."""
    from octavo.chat.format import ChatParsers
    from octavo.server.listen import bind
    from octavo.server.logs import configure_logging
    from octavo.server.settings import ServerSettings

    reference = model_or_default(model)
    settings = ServerSettings(
        served_model_names=served_names(reference, served_model_name),
        api_keys=access.keys(),
        admin_key=access.admin(),
        log_requests=server.enable_log_requests,
        strict_fields=server.strict_fields,
        trust_request_chat_template=server.trust_request_chat_template,
        max_prompt_len=access.max_prompt_len,
        max_tokens_per_request=access.max_tokens_per_request,
        parsers=ChatParsers(tool_call_parser, reasoning_parser),
        cors=cross_origin.settings(),
    )
    args = replace(
        scheduling.applied_to(engine.args(reference)),
        tenant_weights=tuple((key.name, key.weight) for key in settings.api_keys if key.weight != 1.0),
    )
    configure_logging(server.log_format.value)
    with bind(server.host, server.port) as bound:
        code = _load_and_run(args, settings, bound, server.options())
    raise typer.Exit(code)


def _load_and_run(args: EngineArgs, settings: ServerSettings, bound: socket.socket, options: RunOptions) -> int:
    """The exit status, once the server has been told to stop."""
    from octavo.cli.progress import ProgressReport
    from octavo.engine.async_engine import AsyncEngine
    from octavo.engine.build import build_engine
    from octavo.metrics.totals import EngineTotals
    from octavo.server.run import serve as run_server

    logging.getLogger(__name__).info("loading %s", args.model)
    totals = EngineTotals()
    with ProgressReport() as progress:
        built = build_engine(args, progress=progress, listeners=(totals,), warm_up=True)
    return run_server(AsyncEngine(built), settings, totals, bound, options)
