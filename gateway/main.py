"""The gateway's process: serve until a signal says stop."""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Final

import uvicorn
import uvloop

from orcastream.gateway.app import create_app
from orcastream.gateway.http.connection import BoundedConnection
from orcastream.gateway.http.connections import LAST_EVENTS_S, Connections
from orcastream.gateway.http.descriptors import allow_descriptors
from orcastream.gateway.http.guards import connection_limits
from orcastream.gateway.http.url_secrets import WithoutSecrets
from orcastream.gateway.listening import listening
from orcastream.gateway.service import Gateway, new_gateway_name
from orcastream.gateway.settings import GatewaySettings
from orcastream.telemetry.leaving import leaving, on_stop
from orcastream.telemetry.logs import set_up_logging
from orcastream.telemetry.setup import Telemetry, start_telemetry

_MARGIN_S = LAST_EVENTS_S + 1.0
"""Time for all connections to close after the shutdown grace."""


class _Server(uvicorn.Server):
    """uvicorn, which notifies the gateway of a stop signal at once; otherwise uvicorn would wait for open streams."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a stop signal; a second SIGINT does not wait."""
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._on_exit)


async def serve(
    settings: GatewaySettings, name: str, telemetry: Telemetry, early: list[int], *, shares_port: bool
) -> None:
    """Serve until a signal says stop; return at once if `early` has one, received before the event loop ran."""
    on_stop(leaving(telemetry))
    if early:
        return
    sockets = listening(settings.host, settings.port, "port", shared=shares_port)
    if settings.process_port is not None:
        sockets += listening(settings.host, settings.process_port, "process_port")
    gateway = Gateway(settings, name=name, telemetry=telemetry)
    connections = Connections(connection_limits(settings), settings.cors_origins)
    config = uvicorn.Config(
        create_app(gateway),
        http=partial(BoundedConnection, connections),  # type: ignore[arg-type]  # called as the class would be
        ws="none",
        log_config=None,
        access_log=settings.access_log,
        server_header=False,
        timeout_graceful_shutdown=int(settings.shutdown_grace_s + _MARGIN_S),
    )
    config.load()
    _leave_to_itself()
    server = _Server(config, gateway.begin_stop)
    on_stop(server.handle_exit)  # uvicorn has its own while it serves, then raises the signal again
    try:
        await server.serve(sockets)
    finally:
        on_stop(_ignore)


_SWITCH_S: Final = 0.0005
"""How long a thread that parses a body may hold the interpreter while the event loop wants it. [s]"""


def run(settings: GatewaySettings, *, shares_port: bool = False) -> None:
    """Run a gateway in this process; return once it has stopped. `shares_port`: others listen on its port, too.

    Raises UnusableTelemetry and CannotListen if it cannot start as configured.
    """
    set_up_logging(settings.log_level, settings.log_form, content=settings.log_content)
    if settings.access_log:
        access_log = logging.getLogger("uvicorn.access")
        access_log.setLevel(logging.INFO)
        access_log.addFilter(WithoutSecrets())
    settings = settings.model_copy(update={"max_connections": allow_descriptors(settings.max_connections)})
    on_stop(leaving())
    name = new_gateway_name()
    telemetry = start_telemetry(
        "orcastream-gateway", name, prometheus=settings.metrics, log_content=settings.log_content
    )
    sys.setswitchinterval(_SWITCH_S)
    early: list[int] = []
    on_stop(lambda number, frame: early.append(number))  # a half-made event loop cannot be left cleanly
    try:
        uvloop.run(serve(settings, name, telemetry, early, shares_port=shares_port))
    finally:
        telemetry.shut_down()


def _leave_to_itself() -> None:
    """Exempt all loaded objects from garbage collection: scanning them stops all streams for 0.1 s each time."""
    gc.collect()
    gc.freeze()


def _ignore(number: int, frame: FrameType | None) -> None:
    """The process is already ending."""
