"""The HTTP application: its routes, and the response to every error."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

from fastapi import FastAPI
from redis.exceptions import ResponseError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from orcastream.broker.errors import BrokerError
from orcastream.gateway import health, models_api, requests_api, tokenize_api
from orcastream.gateway.batches import batches_api, files_api
from orcastream.gateway.batches.batches import Batches
from orcastream.gateway.batches.form import FILES_PATH
from orcastream.gateway.console.routes import console_routes
from orcastream.gateway.errors import ApiError, crashed, invalid, unavailable
from orcastream.gateway.generate import generate
from orcastream.gateway.http.cross_origin import readable_by
from orcastream.gateway.http.guards import add_guards
from orcastream.gateway.http.request_id import request_id_of, with_request_id
from orcastream.gateway.http.url_secrets import without_keys
from orcastream.gateway.http_telemetry import instrument, metrics
from orcastream.gateway.log import LOGGER, log_event
from orcastream.gateway.openai.docs_page import HEADERS, docs_page
from orcastream.gateway.openai.document import document
from orcastream.gateway.openai.endpoints import ENDPOINTS, OF_CHOICES
from orcastream.gateway.replies.sse import SERVERS_SEND
from orcastream.gateway.request_telemetry import RequestTelemetry
from orcastream.gateway.responses import by_id
from orcastream.gateway.responses.create import create
from orcastream.gateway.service import Gateway
from orcastream.schemas.errors import InvalidRequest, shown, without_values

_CLIENT_LEFT = 499
_GENERATING = frozenset(endpoint.path for endpoint in ENDPOINTS)

Handler = Callable[[Request], Awaitable[Response]]


class _App(FastAPI):
    """Exposes the server's own `send` to responses, before any middleware wraps it, and gives every answer its id."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SERVERS_SEND] = send
        await super().__call__(scope, receive, with_request_id(scope, send))


def create_app(gateway: Gateway) -> FastAPI:
    """Create the application around one gateway; its lifespan starts and closes the gateway."""
    batches = Batches(gateway)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        batches.start()
        yield
        await batches.close()
        await gateway.close()

    app = _App(
        title="Orcastream",
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_guards(app, gateway.settings, partial(_refused, gateway))
    for method, path, handler in (*_routes(gateway), *_batch_routes(batches)):
        app.add_route(path, handler, methods=[method])
    app.router.routes += console_routes(gateway)
    for kind in _TOLD:
        app.add_exception_handler(kind, partial(_answer, gateway))
    app.add_exception_handler(Exception, partial(_answer_crash, gateway))
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
        *(("POST", endpoint.path, partial(generate, gateway, endpoint)) for endpoint in OF_CHOICES),
        ("POST", "/v1/responses", partial(create, gateway)),
        ("GET", "/v1/responses/{request_id}", partial(by_id.retrieve, gateway)),
        ("DELETE", "/v1/responses/{request_id}", partial(by_id.delete, gateway)),
        ("POST", "/v1/responses/{request_id}/cancel", partial(by_id.cancel, gateway)),
        ("GET", "/v1/responses/{request_id}/input_items", partial(by_id.input_items, gateway)),
        ("GET", "/v1/models", partial(models_api.models, gateway)),
        ("GET", "/v1/models/{name:path}", partial(models_api.model, gateway)),
        ("GET", "/v1/requests/{request_id}/events", partial(requests_api.events, gateway)),
        ("DELETE", "/v1/requests/{request_id}", partial(requests_api.cancel, gateway)),
        ("GET", "/openapi.json", _openapi),
        ("GET", "/docs", _docs),
        ("POST", "/tokenize", partial(tokenize_api.tokenize, gateway)),
        ("POST", "/detokenize", partial(tokenize_api.detokenize, gateway)),
        ("GET", "/health", partial(health.ready, gateway)),
        ("GET", "/health/live", partial(health.live, gateway)),
        ("GET", "/health/ready", partial(health.ready, gateway)),
    ]


def _batch_routes(batches: Batches) -> list[tuple[str, str, Handler]]:
    return [
        ("POST", FILES_PATH, partial(files_api.create, batches)),
        ("GET", FILES_PATH, partial(files_api.list_files, batches)),
        ("GET", f"{FILES_PATH}/{{file_id}}", partial(files_api.retrieve, batches)),
        ("DELETE", f"{FILES_PATH}/{{file_id}}", partial(files_api.delete, batches)),
        ("GET", f"{FILES_PATH}/{{file_id}}/content", partial(files_api.content, batches)),
        ("POST", "/v1/batches", partial(batches_api.create, batches)),
        ("GET", "/v1/batches", partial(batches_api.list_batches, batches)),
        ("GET", "/v1/batches/{batch_id}", partial(batches_api.retrieve, batches)),
        ("POST", "/v1/batches/{batch_id}/cancel", partial(batches_api.cancel, batches)),
    ]


async def _openapi(request: Request) -> Response:
    return JSONResponse(document())


async def _docs(request: Request) -> Response:
    return HTMLResponse(docs_page(), headers=HEADERS)


def _http(request: Request, error: HTTPException) -> ApiError:
    """Return the router's error with a message that names the path."""
    message, status = str(error.detail), error.status_code
    methods = _methods_at(request) if status == 405 else None
    code = {404: "not_found", 405: "method_not_allowed"}.get(status)
    if code is not None and message == HTTPStatus(status).phrase:
        allowed = "the paths that GET /docs lists" if methods is None else f"{methods} at this path"
        message = f"{request.method} {without_keys(shown(request.url.path))}: {message}, allowed: {allowed}"
    headers = error.headers if methods is None else {"Allow": methods}
    return ApiError(status, message, code=code, headers=headers)


def _methods_at(request: Request) -> str:
    """Return the methods of all routes at a path; the router names only those of the first."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in routes for method in getattr(route, "methods", ())}))


def _crash(request: Request, error: Exception) -> ApiError:
    LOGGER.error("a request failed", exc_info=error, extra={"request": request_id_of(request.scope)})
    return crashed("request")


_TOLD = (ApiError, InvalidRequest, HTTPException, BrokerError, ResponseError, ClientDisconnect)


def _told(request: Request, error: Exception) -> ApiError:
    """Return any error as clients see it."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return invalid(error)
        case HTTPException():
            return _http(request, error)
        case BrokerError():
            return unavailable(f"Redis cannot be reached: {error}")
        case ResponseError():
            return unavailable(f"Redis cannot serve this now: {error}")
        case ClientDisconnect():
            return ApiError(499, "The client left before the request was read.")
    return _crash(request, error)


def _answer(gateway: Gateway, request: Request, error: Exception) -> Response:
    told = _told(request, error)
    if told.refused and request.url.path in _GENERATING and told.status != _CLIENT_LEFT:
        _refused(gateway, told, getattr(request.state, "model", None))
    log_event(
        "refused",
        request=request_id_of(request.scope),
        path=_route(request),
        status=told.status,
        code=told.code,
        why=_told_in_logs(told),
    )
    return JSONResponse(told.body(), status_code=told.status, headers=told.headers)


def _answer_crash(gateway: Gateway, request: Request, error: Exception) -> Response:
    """As `_answer`, where Starlette answers outside all middleware."""
    answer = _answer(gateway, request, error)
    answer.headers.update(readable_by(request.headers.get("origin"), gateway.settings.cors_origins))
    return answer


def _route(request: Request) -> str:
    """Return the route's path template: the actual path may contain anything that a client made up."""
    endpoint = request.scope.get("endpoint")
    paths = (route.path for route in request.app.routes if getattr(route, "endpoint", None) is endpoint is not None)
    return str(next(paths, "unknown"))


def _told_in_logs(error: ApiError) -> str | None:
    """Return an error's message without quoted values, which may be prompts; None if it has nothing else to say."""
    if error.is_fault:
        return without_values(error.message)
    outline = without_values(error.message)
    return None if outline == error.message else outline


def _refused(gateway: Gateway, error: ApiError, model: str | None = None) -> None:
    gateway.metrics.refused(error.code or str(error.status), model)
    RequestTelemetry().failed(error)
