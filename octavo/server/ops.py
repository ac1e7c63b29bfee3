"""Routes for those who run the server: /health, /version, /metrics, /reset_prefix_cache."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from octavo.server.service import service_of
from octavo.version import __version__

router = APIRouter()


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
