"""The ASGI application."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from octavo.metrics.totals import EngineTotals
from octavo.server import chat, completions, models, ops, tokenize
from octavo.server.auth import BearerAuth
from octavo.server.errors import UnexpectedErrors, add_error_responses
from octavo.server.http_metrics import HttpMetrics
from octavo.server.request_ids import RequestIds
from octavo.server.service import Service
from octavo.server.settings import ServerSettings
from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine


def create_app(engine: AsyncEngine, settings: ServerSettings, totals: EngineTotals) -> FastAPI:
    """The app that serves `engine`, which is started and stopped by the caller. `totals` must be its listener."""
    app = FastAPI(title="Octavo", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    service = Service(engine, settings, totals)
    app.state.service = service
    for part in (chat, completions, models, tokenize, ops):
        app.include_router(part.router)
    add_error_responses(app)
    # The last one added is the outermost.
    app.add_middleware(UnexpectedErrors)
    app.add_middleware(BearerAuth, keys=settings.api_keys, admin_key=settings.admin_key)
    app.add_middleware(HttpMetrics, totals=service.http)
    if settings.cors is not None:
        app.add_middleware(CORSMiddleware, **asdict(settings.cors))
    app.add_middleware(RequestIds)
    return app
