"""The checks between clients and the API, put together from the settings."""

from collections.abc import Callable

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from orcastream.gateway.admission.body_limit import BodyLimit
from orcastream.gateway.batches.form import FILES_PATH, MAX_FORM_BYTES
from orcastream.gateway.errors import ApiError
from orcastream.gateway.http.connections import ConnectionLimits
from orcastream.gateway.http.cross_origin import EXPOSED_HEADERS, METHODS
from orcastream.gateway.http.host_check import HostCheck, hosts_for
from orcastream.gateway.http.origin_check import OriginCheck
from orcastream.gateway.settings import GatewaySettings


def add_guards(app: FastAPI, settings: GatewaySettings, refused: Callable[[ApiError], None]) -> None:
    """Add the checks of each request; the one added last runs first. `refused` is called with each error they send."""
    larger = {FILES_PATH: settings.max_file_bytes + MAX_FORM_BYTES}
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes, refused=refused, larger=larger)
    app.add_middleware(HostCheck, allowed=hosts_for(settings.allowed_hosts, settings.host), refused=refused)
    if settings.cors_origins:  # around the others: a page cannot read an error without these headers
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=METHODS,
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(OriginCheck, allowed=settings.cors_origins, refused=refused)


def connection_limits(settings: GatewaySettings) -> ConnectionLimits:
    """Return the bounds and timeouts of connections."""
    return ConnectionLimits(
        settings.max_connections,
        settings.header_timeout_s,
        settings.body_timeout_s,
        settings.idle_timeout_s,
        settings.write_timeout_s,
        settings.shutdown_grace_s,
    )
