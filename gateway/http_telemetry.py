"""Server spans and HTTP metrics, by OpenTelemetry's own instrumentation, and the page that Prometheus scrapes."""

import asyncio
import os
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from telemetry.prometheus import metrics_page

if TYPE_CHECKING:
    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry

_UNTOLD: Final = "^https?://[^/]*/(health/|metrics$)"
"""Probes and scrapes have no spans, and no durations."""
_OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"


def instrument(app: "FastAPI") -> None:
    """A server span for every request of `app`, from its first byte to the last one of the answer."""
    opted_in = {name.strip() for name in os.environ.get(_OPT_IN, "").split(",")} - {""}
    if not opted_in & {"http", "http/dup"}:  # read when the instrumentation is loaded: without it, names of the past
        os.environ[_OPT_IN] = ",".join(sorted(opted_in | {"http"}))
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    FastAPIInstrumentor.instrument_app(app, excluded_urls=_UNTOLD, exclude_spans=["send", "receive"])


async def metrics(registry: "CollectorRegistry", request: Request) -> Response:
    """GET /metrics."""
    page, content_type = await asyncio.to_thread(metrics_page, registry, request.headers.get("accept", ""))
    return Response(page, headers={"Content-Type": content_type})
