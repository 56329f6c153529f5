"""/health: whether the process is alive, and whether it can serve."""

from typing import Any

from redis.exceptions import ResponseError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from orcastream.broker.errors import BrokerError
from orcastream.broker.server_state import eviction_warning
from orcastream.gateway.errors import ApiError, gateway_stopping, no_worker, unavailable
from orcastream.gateway.service import Gateway


async def live(gateway: Gateway, request: Request) -> Response:
    """GET /health/live: the process is alive."""
    return JSONResponse({"status": "live"})


async def ready(gateway: Gateway, request: Request) -> Response:
    """GET /health/ready, and /health as other servers call it: Redis answers, the API keys are known, and one of the
    models is served.

    A `warning` says that the settings of Redis may lose requests. Raises ApiError 503 with the reason otherwise.
    """
    try:
        answer = await _ready(gateway)
    except ApiError as error:
        gateway.told_ready(error.message)
        raise
    gateway.told_ready(None)
    return answer


async def _ready(gateway: Gateway) -> Response:
    if gateway.shutdown.stopping:
        raise gateway_stopping()
    try:
        link = await gateway.redis.get()
        await link.call("PING")
        warning = await eviction_warning(link)
        workers = {model.name: len(await model.workers.alive()) for model in gateway.models}
    except (BrokerError, ResponseError) as error:
        raise unavailable(f"Redis cannot be reached: {error}", "redis_unavailable") from None
    gateway.told_warning(warning)
    gateway.tenants.known()
    first = gateway.models.default
    if gateway.settings.require_worker and not any(workers.values()):
        raise no_worker(first.name)
    told: dict[str, Any] = {"status": "ready", "model": first.name, "workers": workers[first.name]}
    if len(workers) > 1:
        told["models"] = workers
    if warning is not None:
        told["warning"] = warning
    return JSONResponse(told)
