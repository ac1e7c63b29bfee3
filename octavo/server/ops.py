"""Routes for those who run the server: is it alive, what does it do, what was decided, its figures, its cache."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from octavo.server.service import service_of
from octavo.version import __version__

router = APIRouter()


@router.get("/live")
async def live() -> Response:
    """200 as long as the process answers at all."""
    return JSONResponse({"status": "ok"})


@router.get("/load")
async def load(request: Request) -> Response:
    """How many requests are being served, as vLLM tells it, and how many of them run and wait."""
    service = service_of(request)
    totals = service.totals
    return JSONResponse(
        {
            "server_load": service.engine.num_unfinished,
            "num_requests_running": totals.num_running,
            "num_requests_waiting": totals.num_waiting,
            "kv_cache_usage": totals.kv_usage,
        }
    )


@router.get("/server_info")
async def server_info(request: Request) -> Response:
    """What was decided at start."""
    service = service_of(request)
    config = asdict(service.engine.config)
    return JSONResponse({"version": __version__, "served_model_names": service.settings.served_model_names} | config)


@router.get("/ready")
@router.get("/health")
async def health(request: Request) -> Response:
    """200 while requests are served; 503 when the engine is broken or the server is stopping."""
    service_of(request).check_available()
    return JSONResponse({"status": "ok"})


@router.get("/version")
async def version() -> Response:
    return JSONResponse({"version": __version__})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text, or OpenMetrics if the client prefers it."""
    page, content_type = service_of(request).exposition.render(request.headers.get("accept", ""))
    return Response(page, headers={"Content-Type": content_type})


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """Forgets every known prefix, also those in files. Requests that run are not disturbed."""
    service = service_of(request)
    service.check_available()
    return JSONResponse({"num_blocks": await service.engine.reset_prefixes()})
