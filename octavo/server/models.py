"""GET /v1/models."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from octavo.server.service import Service, service_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """The names under which the model is served."""
    service = service_of(request)
    models = [_card(service, name) for name in service.settings.served_model_names]
    return JSONResponse({"object": "list", "data": models})


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    """One of them."""
    service = service_of(request)
    service.check_model(name)
    return JSONResponse(_card(service, name))


def _card(service: Service, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "octavo",
        "root": service.engine.config.model,
        "parent": None,
        "max_model_len": service.engine.config.max_model_len,
    }
