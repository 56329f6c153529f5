"""Refuses requests for other hosts: a page whose own name leads here would be of one origin with the API."""

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from orcastream.gateway.errors import ApiError

ANY: Final = "*"
_LOCAL: Final = ("localhost", "*.localhost")
"""Names that lead to the own machine, whatever a name server says."""


def hosts_for(allowed: Sequence[str], listens_on: str) -> tuple[str, ...]:
    """The names that a server answers to: those that are set; else, where it listens on `localhost` alone, that one."""
    return tuple(allowed) or (_LOCAL if _is_loopback(listens_on) else (ANY,))


class HostCheck:
    """ASGI middleware: 421 for a Host that is neither an allowed name nor the machine itself.

    Names may begin with `*.`. An address can be no page's own name, and is always allowed.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str], refused: Callable[[ApiError], None]) -> None:
        """`refused` is told of each refusal, before it is answered."""
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
            "The gateway does not answer to this Host; the setting allowed_hosts names those it does.",
            code="unknown_host",
        )

    def _allows(self, name: str) -> bool:
        if is_address(name) or name in self._names:
            return True
        return any(f"*.{parent}" in self._names for parent in _parents(name))


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port; empty where it is neither."""
    try:
        return (urlsplit(f"//{host.strip()}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Whether it is an IP address."""
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
