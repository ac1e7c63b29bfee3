"""What every route needs: the engine, the settings, the counters, and whether the server still takes requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from octavo.errors import EngineDeadError, ShuttingDownError, UnknownModelError
from octavo.metrics.http_totals import HttpTotals
from octavo.metrics.prometheus import Exposition
from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine


class Service:
    """One served model. `draining` is set once, when the server is told to stop."""

    def __init__(self, engine: AsyncEngine, settings: ServerSettings, totals: EngineTotals) -> None:
        self.engine = engine
        self.settings = settings
        self.http = HttpTotals()
        self.exposition = Exposition(totals, self.http, engine.config, settings.served_model_names[0])
        self.created = int(time.time())
        self.draining = False

    def check_available(self) -> None:
        """Raises `EngineDeadError` or `ShuttingDownError` if no request can be served now."""
        if self.draining:
            raise ShuttingDownError("the server is shutting down")
        if not self.engine.healthy:
            raise EngineDeadError("the engine has stopped after an error; see the server's log")

    def check_model(self, name: str) -> None:
        """Raises `UnknownModelError` unless `name` is served here."""
        if name not in self.settings.served_model_names:
            served = ", ".join(repr(served) for served in self.settings.served_model_names)
            raise UnknownModelError(f"the model {name[:200]!r} does not exist here; served: {served}", param="model")


def service_of(connection: HTTPConnection) -> Service:
    """The service of the app that `connection` came to."""
    service: Service = connection.app.state.service
    return service
