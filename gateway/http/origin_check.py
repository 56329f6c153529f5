"""Rejects requests from pages of other origins, unless cross-origin requests are configured."""

from collections.abc import Callable, Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from orcastream.gateway.errors import ApiError
from orcastream.gateway.http.cross_origin import ANY

_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_OWN_SITE: Final = ("same-origin", "none")
"""Values of Sec-Fetch-Site (set by browsers, never by scripts) for requests without another site's involvement."""


class OriginCheck:
    """ASGI middleware: 403 for an Origin that is neither the server's own nor allowed. Programs send no Origin."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str], refused: Callable[[ApiError], None]) -> None:
        """Call `refused` with each error before it is sent."""
        self._app = app
        self._allowed = frozenset(allowed)
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or self._allows(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            403,
            "Pages of this Origin may not use the gateway; the setting cors_origins lists the allowed ones.",
            code="foreign_origin",
        )
        self._refused(error)
        await JSONResponse(error.body(), status_code=error.status)(scope, receive, send)

    def _allows(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None or ANY in self._allowed or origin in self._allowed:
            return True
        return headers.get("sec-fetch-site") in _OWN_SITE or _is_at(origin, headers.get("host", ""))


def _is_at(origin: str, host: str) -> bool:
    """Whether an origin is the requested host. The scheme is ignored, since a proxy may have terminated TLS."""
    scheme, _, authority = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    return default is not None and authority.lower().removesuffix(default) == host.lower().removesuffix(default)
