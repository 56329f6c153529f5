"""/v1/models: the served models."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from orcastream.gateway.served_models import Named
from orcastream.gateway.service import Gateway


async def models(gateway: Gateway, request: Request) -> Response:
    """GET /v1/models: all models and adapters that this gateway serves."""
    gateway.tenants.of(request.headers)
    return JSONResponse({"object": "list", "data": [_told(gateway, one) for one in await gateway.models.all_named()]})


async def model(gateway: Gateway, request: Request) -> Response:
    """GET /v1/models/{name}."""
    gateway.tenants.of(request.headers)
    return JSONResponse(_told(gateway, await gateway.models.named(request.path_params["name"])))


def _told(gateway: Gateway, named: Named) -> dict[str, Any]:
    model = named.model
    return {
        "id": named.name,
        "object": "model",
        "created": gateway.started_at,
        "owned_by": "orcastream",
        "root": model.name,
        "parent": model.name if named.adapter else None,
        "max_model_len": model.workers.limits.max_total_tokens,
    }
