"""The admin port: metrics for Prometheus, and health for the orchestrator of workers."""

import json
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from orcastream.telemetry.prometheus import metrics_page

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_POLL_S = 0.05
"""How soon the server's thread notices that it must end."""

Answer = tuple[HTTPStatus, bytes, str]


class AdminPortUnavailable(ValueError):
    """The admin port cannot be listened on; the message names the setting, its value and what is allowed."""


class Watched(Protocol):
    """What the admin port reports about a worker; called from other threads."""

    @property
    def state(self) -> str:
        """`connecting`, `serving` or `draining`."""

    @property
    def operators(self) -> Mapping[str, str]:
        """The operators that the engine computes with."""

    def stalled_for_s(self) -> float:
        """Seconds since the engine last made progress; 0 while it has nothing to do."""


class Admin:
    """A small server in its own threads: it answers while the model loads and while the event loop is busy.

    `/health/live` returns 503 once the engine has made no progress for `stall_timeout_s`, and otherwise 200, whatever
    the state of Redis; `/health/ready` returns 200 while the worker serves: not while it loads, first connects, or
    drains. Once the model is loaded, both list the operators in use.
    """

    def __init__(self, host: str, port: int, registry: "CollectorRegistry", *, stall_timeout_s: float) -> None:
        """Listen; raise AdminPortUnavailable if that is not possible."""
        self._registry = registry
        self._stall_timeout_s = stall_timeout_s
        self._worker: Watched | None = None
        try:
            self._server = _server(host, port, self._answer)
        except OSError as error:
            raise AdminPortUnavailable(
                f"admin_port (--admin-port, ORCASTREAM_ADMIN_PORT): port {port} on {host} cannot be listened on "
                f"({error.strerror}); allowed: a free port, 0 for any, or none"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), name="admin", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port being listened on."""
        return int(self._server.server_address[1])

    def watch(self, worker: Watched) -> None:
        """Report about `worker` from now on: the model is loaded."""
        self._worker = worker

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str, accept: str) -> Answer:
        match path:
            case "/metrics":
                return HTTPStatus.OK, *metrics_page(self._registry, accept)
            case "/health/live":
                return self._live()
            case "/health/ready":
                state = "loading" if self._worker is None else self._worker.state
                status = HTTPStatus.OK if state == "serving" else HTTPStatus.SERVICE_UNAVAILABLE
                return _json(status, state, **self._loaded())
        return _json(HTTPStatus.NOT_FOUND, "not found")

    def _live(self) -> Answer:
        stalled_s = 0.0 if self._worker is None else self._worker.stalled_for_s()
        if stalled_s > self._stall_timeout_s:
            return _json(HTTPStatus.SERVICE_UNAVAILABLE, "stalled", seconds=round(stalled_s, 1), **self._loaded())
        return _json(HTTPStatus.OK, "live", **self._loaded())

    def _loaded(self) -> dict[str, Mapping[str, str]]:
        return {} if self._worker is None else {"operators": self._worker.operators}


def _json(status: HTTPStatus, state: str, **more: object) -> Answer:
    return status, json.dumps({"status": state, **more}).encode(), "application/json"


def _server(host: str, port: int, answer: Callable[[str, str], Answer]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5
        """Seconds until a silent client is dropped."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            status, body, content_type = answer(urlsplit(self.path).path, self.headers.get("Accept", ""))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: a probe is not an event."""

    class Server(ThreadingHTTPServer):
        address_family = AF_INET6 if ":" in host else ThreadingHTTPServer.address_family
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Log nothing: a client that hung up is not an event."""

    return Server((host, port), Handler)
