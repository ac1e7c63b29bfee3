"""The server's life: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Generator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from octavo.errors import ConfigError
from octavo.metrics.activity import ActivityMeter
from octavo.metrics.totals import EngineTotals
from octavo.server.app import create_app
from octavo.server.http_limits import RECEIVE_TIMEOUT_S, bounded_requests
from octavo.server.listen import url_of
from octavo.server.logs import log_event
from octavo.server.loop_lag import measure_loop_lag
from octavo.server.service import Service
from octavo.server.settings import ServerSettings
from octavo.server.startup import startup_text, startup_values

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine

LOG_STATS_INTERVAL_S = 10.0

logger = logging.getLogger(__name__)

_HEALTH_INTERVAL_S = 0.2
# How long /health says 503 before a process with a broken engine ends.
_DEATH_NOTICE_S = 2.0
# How long answers that are complete may take to reach slow readers at the end.
_FLUSH_S = 5.0
# Longer than clients keep idle connections, so that it is they who close them.
_KEEP_ALIVE_S = 75


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`log_stats_interval_s` is how often a line of activity is logged; None: never. A request must have arrived whole
    within `receive_timeout_s`."""

    shutdown_timeout_s: float = 30.0
    receive_timeout_s: float = RECEIVE_TIMEOUT_S
    log_stats_interval_s: float | None = LOG_STATS_INTERVAL_S
    uvicorn_log_level: str = "warning"


def serve(
    engine: AsyncEngine, settings: ServerSettings, totals: EngineTotals, bound: socket.socket, options: RunOptions
) -> int:
    """Serves until SIGTERM or SIGINT, then drains. Returns the exit code: 0, or 1 when the engine broke."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Run(engine, settings, totals, bound, options).run())


class _Run:
    """One run of the server, from listening to the exit code."""

    def __init__(
        self,
        engine: AsyncEngine,
        settings: ServerSettings,
        totals: EngineTotals,
        bound: socket.socket,
        options: RunOptions,
    ) -> None:
        app = create_app(engine, settings, totals)
        self._service: Service = app.state.service
        self._engine = engine
        self._totals = totals
        self._bound = bound
        self._options = options
        self._stop = asyncio.Event()
        self._server = _Server(
            uvicorn.Config(
                app,
                http=bounded_requests(options.receive_timeout_s),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=options.uvicorn_log_level,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(_FLUSH_S),
            )
        )

    async def run(self) -> int:
        self._engine.start()
        self._catch_signals()
        serving = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        await self._listening(serving)
        self._announce()
        measuring_lag = asyncio.create_task(measure_loop_lag(self._service.http.loop_lag))
        logging_activity = asyncio.create_task(self._log_activity())
        broke = await self._until_stop_or_death(serving)
        code = await (self._give_notice() if broke else self._drain())
        self._server.should_exit = True
        await serving
        logging_activity.cancel()
        measuring_lag.cancel()
        logger.info("stopped")
        return code

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._service.draining and number == signal.SIGINT:
            os._exit(128 + signal.SIGINT)
        self._service.draining = True
        self._stop.set()

    async def _listening(self, serving: asyncio.Task[None]) -> None:
        while not self._server.started:
            if serving.done():
                _raise_startup_error(serving)
            await asyncio.sleep(0.002)

    def _announce(self) -> None:
        names = self._service.settings.served_model_names
        url = url_of(self._bound)
        config = self._engine.config
        log_event(logger, "ready", startup_text(config, url, names), startup_values(config, url, names))

    async def _until_stop_or_death(self, serving: asyncio.Task[None]) -> bool:
        """Whether the engine broke."""
        while self._engine.healthy and not serving.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _HEALTH_INTERVAL_S)
                return False
        return not self._engine.healthy

    async def _give_notice(self) -> int:
        logger.error("the engine has stopped after an error: ending in %.0f s", _DEATH_NOTICE_S)
        await asyncio.sleep(_DEATH_NOTICE_S)
        return 1

    async def _drain(self) -> int:
        logger.info("stopping: running requests may finish within %g s", self._options.shutdown_timeout_s)
        await self._engine.shutdown(self._options.shutdown_timeout_s)
        return 0

    async def _log_activity(self) -> None:
        interval_s = self._options.log_stats_interval_s
        if interval_s is None:
            return
        meter = ActivityMeter(self._totals)
        while True:
            await asyncio.sleep(interval_s)
            activity = meter.read(interval_s)
            if activity is not None:
                log_event(logger, "activity", str(activity), asdict(activity))


class _Server(uvicorn.Server):
    """Leaves signals to `_Run`, which drains the engine before it lets the server go."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _raise_startup_error(serving: asyncio.Task[None]) -> None:
    try:
        serving.result()
    except OSError as error:
        raise ConfigError(f"the server cannot listen: {error.strerror}") from error
    raise ConfigError("the server stopped while it was starting")
