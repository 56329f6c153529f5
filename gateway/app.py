"""The HTTP application: routes, and how every error is told."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from redis.exceptions import ResponseError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from broker.errors import BrokerError
from gateway import models_api, requests_api
from gateway.body_limit import BodyLimit
from gateway.errors import ApiError, invalid, unavailable
from gateway.generate import generate
from gateway.http_telemetry import instrument, metrics
from gateway.kind import Kind
from gateway.log import LOGGER, log_event
from gateway.openapi import openapi
from gateway.request_telemetry import RequestTelemetry
from gateway.service import Gateway
from gateway.sse import SERVERS_SEND
from schemas.errors import InvalidRequest, without_values

_CLIENT_LEFT = 499
_FAULT = 500
_GENERATING = ("/v1/completions", "/v1/chat/completions")

Handler = Callable[[Request], Awaitable[Response]]


class _App(FastAPI):
    """Shows the server's own `send` to responses, before any middleware wraps it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SERVERS_SEND] = send
        await super().__call__(scope, receive, send)


def create_app(gateway: Gateway) -> FastAPI:
    """The application around one gateway; its lifespan starts and closes the gateway."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        yield
        await gateway.close()

    app = _App(title="Orcastream", lifespan=lifespan, openapi_url=None)
    app.add_middleware(BodyLimit, max_body_bytes=gateway.settings.max_body_bytes, refused=partial(_refused, gateway))
    for method, path, handler in _routes(gateway):
        app.add_route(path, handler, methods=[method])
    for kind, tell in _TELL.items():
        app.add_exception_handler(kind, partial(_answer, gateway, tell))
    if gateway.telemetry.on:
        instrument(app)
    return app


def _routes(gateway: Gateway) -> list[tuple[str, str, Handler]]:
    registry = gateway.telemetry.registry
    scraped: list[tuple[str, str, Handler]] = (
        [] if registry is None else [("GET", "/metrics", partial(metrics, registry, gateway.settings.process_port))]
    )
    return [
        *scraped,
        ("POST", "/v1/completions", partial(_generate, gateway, Kind.COMPLETION)),
        ("POST", "/v1/chat/completions", partial(_generate, gateway, Kind.CHAT)),
        ("GET", "/v1/models", partial(models_api.models, gateway)),
        ("GET", "/v1/models/{name:path}", partial(models_api.model, gateway)),
        ("GET", "/v1/requests/{request_id}/events", partial(requests_api.events, gateway)),
        ("DELETE", "/v1/requests/{request_id}", partial(requests_api.cancel, gateway)),
        ("GET", "/openapi.json", partial(openapi, gateway)),
        ("GET", "/health/live", partial(models_api.live, gateway)),
        ("GET", "/health/ready", partial(models_api.ready, gateway)),
    ]


async def _generate(gateway: Gateway, kind: Kind, request: Request) -> Response:
    return await generate(gateway, kind, request)


def _http(error: Exception) -> ApiError:
    status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
    return ApiError(status, str(detail), code="not_found" if status == 404 else None)


def _crash(error: Exception) -> ApiError:
    LOGGER.error("a request failed", exc_info=error)
    return ApiError(500, "The gateway failed on this request.", kind="server_error", code="internal_error")


_TELL: dict[type[Exception], Callable[[Exception], ApiError]] = {
    ApiError: lambda error: error if isinstance(error, ApiError) else _crash(error),
    InvalidRequest: lambda error: invalid(error) if isinstance(error, InvalidRequest) else _crash(error),
    HTTPException: _http,
    BrokerError: lambda error: unavailable(f"Redis cannot be reached: {error}"),
    ResponseError: lambda error: unavailable(f"Redis cannot serve this now: {error}"),
    ClientDisconnect: lambda _: ApiError(499, "The client left before the request was read."),
    Exception: _crash,
}


def _answer(gateway: Gateway, tell: Callable[[Exception], ApiError], request: Request, error: Exception) -> Response:
    told = tell(error)
    if told.refused and request.url.path in _GENERATING and told.status != _CLIENT_LEFT:
        _refused(gateway, told)
    log_event("refused", path=_route(request), status=told.status, code=told.code, why=_told_in_logs(told))
    return JSONResponse(told.body(), status_code=told.status, headers=told.headers)


def _route(request: Request) -> str:
    """The path as far as it is ours: what else stands there a client has made up."""
    route = request.scope.get("route")
    return str(getattr(route, "path", "unknown"))


def _told_in_logs(error: ApiError) -> str | None:
    """Why a request was refused, without what it held: that may be a prompt. Errors of ours quote nothing of it."""
    if error.status >= _FAULT:
        return without_values(error.message)
    outline = without_values(error.message)
    return None if outline == error.message else outline


def _refused(gateway: Gateway, error: ApiError) -> None:
    gateway.metrics.refused(error.code or str(error.status))
    RequestTelemetry(gateway.metrics).failed(error)
