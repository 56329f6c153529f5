"""How far the request has arrived that a client is sending."""

from collections.abc import Callable
from typing import Final

MAX_HEADER_BYTES: Final = 64 * 1024
"""The headers of one request, including its first line; also its trailers, which could have no end."""


class Arrival:
    """Which part of a request the client owes, and how large its headers have become.

    Bytes arrive in pieces, each of which may hold the end of one request and the beginning of another.
    """

    def __init__(self) -> None:
        self.in_headers = self.in_body = False
        self._began = self._is_body = False
        """Whether a request began, and whether there was some of a body, in the last piece."""
        self._header_bytes = 0
        """What has arrived of incomplete headers, or since the last bytes of a body."""

    def begin_piece(self) -> None:
        """Some bytes are about to be parsed."""
        self._began = self._is_body = False

    def begin(self) -> None:
        """The first byte of a request has arrived."""
        self.in_headers, self._began, self._header_bytes = True, True, 0

    def begin_body(self) -> None:
        """The headers are complete."""
        self.in_headers, self.in_body = False, True

    def add_body(self) -> None:
        """Some bytes of a body have arrived."""
        self._is_body, self._header_bytes = True, 0

    def end(self) -> None:
        """The request is complete, or nothing more of it is read."""
        self.in_headers = self.in_body = False

    def exceeds_headers(self, piece_bytes: int, read_bytes: Callable[[], int]) -> bool:
        """Count a piece that was parsed; return whether its headers or trailers are too large, though incomplete.

        `read_bytes` returns the size of the headers that were parsed: where they begin in a piece, it may hold earlier
        requests, too.
        """
        if not self.in_headers and (not self.in_body or self._is_body):
            return False
        self._header_bytes = read_bytes() if self._began else self._header_bytes + piece_bytes
        return self._header_bytes > MAX_HEADER_BYTES
