"""Rejects requests for other hosts: a page whose own name resolves to this server would be same-origin with the API."""

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from orcastream.gateway.errors import ApiError

ANY: Final = "*"
_LOCAL: Final = ("localhost", "*.localhost")
"""Names that always resolve to the machine itself, whatever a name server says."""


def hosts_for(allowed: Sequence[str], listens_on: str) -> tuple[str, ...]:
    """Return the names that a server answers to: the configured ones; else `localhost` if it listens only there."""
    return tuple(allowed) or (_LOCAL if _is_loopback(listens_on) else (ANY,))


class HostCheck:
    """ASGI middleware: 421 for a Host that is neither an allowed name nor the machine itself.

    Names may begin with `*.`. An IP address cannot be a page's own name, so it is always allowed.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str], refused: Callable[[ApiError], None]) -> None:
        """Call `refused` with each error before it is sent."""
        self._app = app
        self._any = ANY in allowed
        self._names = {name.lower() for name in (*allowed, *_LOCAL)}
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        error = self._wrong(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        self._refused(error)
        await JSONResponse(error.body(), status_code=error.status)(scope, receive, send)

    def _wrong(self, scope: Scope) -> ApiError | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) > 1 or (not hosts and scope["http_version"] == "1.1"):
            return ApiError(400, "A request needs one Host header.", code="invalid_host")
        if self._any or not hosts or self._allows(host_name(hosts[0].decode("latin-1"))):
            return None
        return ApiError(
            421,
            "The gateway does not answer to this Host; the setting allowed_hosts lists the allowed names.",
            code="unknown_host",
        )

    def _allows(self, name: str) -> bool:
        if is_address(name) or name in self._names:
            return True
        return any(f"*.{parent}" in self._names for parent in _parents(name))


def host_name(host: str) -> str:
    """Return the name or address in a Host header, without its port; empty if it is neither."""
    try:
        return (urlsplit(f"//{host.strip()}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Whether `name` is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(listens_on: str) -> bool:
    return listens_on == "localhost" or (is_address(listens_on) and ipaddress.ip_address(listens_on).is_loopback)


def _parents(name: str) -> list[str]:
    labels = name.split(".")
    return [".".join(labels[start:]) for start in range(1, len(labels))]
