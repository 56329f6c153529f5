"""Server spans and HTTP metrics, by OpenTelemetry's own instrumentation, and the page that Prometheus scrapes."""

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import Span
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from orcastream.gateway.http.url_secrets import without_keys
from orcastream.telemetry.prometheus import metrics_page

if TYPE_CHECKING:
    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry

_UNTOLD: Final = "^https?://[^/]*/(health/|metrics$)"
"""Probes and scrapes have no spans, and no durations."""
_OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
_PATHS: Final = ("url.path", "http.target", "http.url")
"""What the instrumentation tells of the URL; the last two with `http/dup`, and then with the query behind them."""


def instrument(app: "FastAPI") -> None:
    """A server span for every request of `app`, from its first byte to the last one of the answer."""
    opted_in = {name.strip() for name in os.environ.get(_OPT_IN, "").split(",")} - {""}
    if not opted_in & {"http", "http/dup"}:  # read when the instrumentation is loaded: without it, names of the past
        os.environ[_OPT_IN] = ",".join(sorted(opted_in | {"http"}))
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    FastAPIInstrumentor.instrument_app(
        app, excluded_urls=_UNTOLD, exclude_spans=["send", "receive"], server_request_hook=_leave_out_secrets
    )


def _leave_out_secrets(span: Span, scope: dict[str, Any]) -> None:
    """Keys in the path, and the query: a client that mistakes it for the body has written its prompt there."""
    if not span.is_recording():
        return
    told = dict(getattr(span, "attributes", None) or {})
    for name in _PATHS:
        if name in told:
            span.set_attribute(name, without_keys(str(told[name]).partition("?")[0]))
    if scope.get("query_string"):
        span.set_attribute("url.query", "REDACTED")


async def metrics(registry: "CollectorRegistry", only_port: int | None, request: Request) -> Response:
    """GET /metrics, on `only_port` where there is one: on a port that is shared, anybody's would be shown."""
    server = request.scope.get("server")
    if only_port is not None and (server is None or server[1] != only_port):
        raise HTTPException(404, f"Metrics of this process are at /metrics on port {only_port}.")
    page, content_type = await asyncio.to_thread(metrics_page, registry, request.headers.get("accept", ""))
    return Response(page, headers={"Content-Type": content_type})
