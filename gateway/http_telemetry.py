"""Server spans and HTTP metrics from OpenTelemetry's own instrumentation, and the page that Prometheus scrapes."""

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import Span
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from orcastream.broker.aside import aside
from orcastream.gateway.http.url_secrets import without_keys
from orcastream.telemetry.prometheus import metrics_page

if TYPE_CHECKING:
    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry

_UNTOLD: Final = "^https?://[^/]*/(health(/.*)?|metrics)$"
"""Probes and scrapes get neither spans nor durations."""
_OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
_PATHS: Final = ("url.path", "http.target", "http.url")
"""URL attributes of the instrumentation; the last two only with `http/dup`, and then including the query."""


def instrument(app: "FastAPI") -> None:
    """Record a server span for every request of `app`, from its first byte to the last byte of the answer."""
    opted_in = {name.strip() for name in os.environ.get(_OPT_IN, "").split(",")} - {""}
    if not opted_in & {"http", "http/dup"}:  # read when it loads; else it uses obsolete names
        os.environ[_OPT_IN] = ",".join(sorted(opted_in | {"http"}))
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    FastAPIInstrumentor.instrument_app(
        app, excluded_urls=_UNTOLD, exclude_spans=["send", "receive"], server_request_hook=_leave_out_secrets
    )


def _leave_out_secrets(span: Span, scope: dict[str, Any]) -> None:
    """Remove the query, and keys in the path: a client that mistakes the query for the body puts its prompt there."""
    if not span.is_recording():
        return
    told = dict(getattr(span, "attributes", None) or {})
    for name in _PATHS:
        if name in told:
            span.set_attribute(name, without_keys(str(told[name]).partition("?")[0]))
    if scope.get("query_string"):
        span.set_attribute("url.query", "REDACTED")


async def metrics(registry: "CollectorRegistry", only_port: int | None, request: Request) -> Response:
    """GET /metrics, on `only_port` if set: a shared port would show the metrics of any one process."""
    server = request.scope.get("server")
    if only_port is not None and (server is None or server[1] != only_port):
        raise HTTPException(404, f"Metrics of this process are at /metrics on port {only_port}.")
    page, content_type = await aside(partial(metrics_page, registry, request.headers.get("accept", "")))
    return Response(page, headers={"Content-Type": content_type})
