"""/v1/models and /health: what is served, and whether it can be."""

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from broker.errors import BrokerError
from gateway.errors import ApiError, model_not_found, unavailable

if TYPE_CHECKING:
    from gateway.service import Gateway


async def models(gateway: "Gateway", request: Request) -> Response:
    """GET /v1/models: the one model that this gateway serves."""
    gateway.tenants.of(request.headers)
    return JSONResponse({"object": "list", "data": [_model(gateway)]})


async def model(gateway: "Gateway", request: Request) -> Response:
    """GET /v1/models/{name}."""
    gateway.tenants.of(request.headers)
    name = request.path_params["name"]
    if name != gateway.settings.served_name:
        raise model_not_found(name, gateway.settings.served_name)
    return JSONResponse(_model(gateway))


async def live(gateway: "Gateway", request: Request) -> Response:
    """GET /health/live: the process answers."""
    return JSONResponse({"status": "live"})


async def ready(gateway: "Gateway", request: Request) -> Response:
    """GET /health/ready: Redis answers, and somebody serves the model; else 503 with the reason."""
    try:
        answer = await _ready(gateway)
    except ApiError as error:
        gateway.told_ready(error.message)
        raise
    gateway.told_ready(None)
    return answer


async def _ready(gateway: "Gateway") -> Response:
    if gateway.stopping:
        raise unavailable("This gateway is stopping.", "gateway_stopping")
    try:
        await (await gateway.redis.get()).call("PING")
        workers = await gateway.workers.alive()
    except (BrokerError, ResponseError) as error:
        raise unavailable(f"Redis cannot be reached: {error}", "redis_unavailable") from None
    await gateway.require_worker()
    return JSONResponse({"status": "ready", "model": gateway.settings.served_name, "workers": len(workers)})


def _model(gateway: "Gateway") -> dict[str, Any]:
    return {
        "id": gateway.settings.served_name,
        "object": "model",
        "created": gateway.started_at,
        "owned_by": "orcastream",
        "max_model_len": gateway.workers.limits.max_total_tokens,
    }
