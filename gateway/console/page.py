"""The files of the console's page."""

from hashlib import sha256
from importlib.resources import files
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_MEDIA: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS: Final = {
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}


class ConsolePage:
    """The page's files, read once from the package; a browser revalidates its copies each time.

    No key is required: the page contains nothing that is not in the source.
    """

    def __init__(self) -> None:
        folder = files(__package__) / "static"
        self._files = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
        self._tags = {name: f'"{sha256(content).hexdigest()[:32]}"' for name, content in self._files.items()}

    async def index(self, request: Request) -> Response:
        """GET /console."""
        return self._answer("index.html", request)

    async def file(self, request: Request) -> Response:
        """GET /console/{name}; 404 if there is no such file."""
        return self._answer(request.path_params["name"], request)

    def _answer(self, name: str, request: Request) -> Response:
        content = self._files.get(name)
        if content is None:
            raise HTTPException(404, "Not Found")
        headers = {**HEADERS, "ETag": self._tags[name]}
        if request.headers.get("if-none-match") == self._tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=_MEDIA[name[name.rindex(".") :]])
