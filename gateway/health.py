"""/health: whether the process is alive, and whether it can serve."""

from redis.exceptions import ResponseError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from orcastream.broker.errors import BrokerError
from orcastream.gateway.errors import ApiError, gateway_stopping, no_worker, unavailable
from orcastream.gateway.service import Gateway


async def live(gateway: Gateway, request: Request) -> Response:
    """GET /health/live: the process is alive."""
    return JSONResponse({"status": "live"})


async def ready(gateway: Gateway, request: Request) -> Response:
    """GET /health/ready, and /health as other servers call it: Redis answers, and one of the models is served.

    Raises ApiError 503 with the reason otherwise.
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
        await (await gateway.redis.get()).call("PING")
        workers = {model.name: len(await model.workers.alive()) for model in gateway.models}
    except (BrokerError, ResponseError) as error:
        raise unavailable(f"Redis cannot be reached: {error}", "redis_unavailable") from None
    first = gateway.models.default
    if gateway.settings.require_worker and not any(workers.values()):
        raise no_worker(first.name)
    told = {"status": "ready", "model": first.name, "workers": workers[first.name]}
    return JSONResponse(told if len(workers) == 1 else {**told, "models": workers})
