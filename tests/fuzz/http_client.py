"""Sends bytes that need not be HTTP to a gateway, and reads the response."""

import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3})")
_QUIET_S: Final = 0.25
"""A request that the server still waits for the rest of is left after so long."""
_PATIENCE_S: Final = 20.0


@dataclass(frozen=True)
class Answer:
    """The response: none (`status` None) if the bytes were not a complete request."""

    status: int | None
    body: bytes
    hung: bool = False
    """A whole request got no answer."""


def send(port: int, raw: bytes, *, whole: bool) -> Answer:
    """Send `raw` on its own connection. `whole`: it is a complete request."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(_PATIENCE_S)
        with suppress(OSError):
            connection.sendall(raw)
        return _read(connection, whole=whole)


def _read(connection: socket.socket, *, whole: bool) -> Answer:
    received = bytearray()
    try:
        while not _is_complete(received):
            connection.settimeout(_PATIENCE_S if whole else _QUIET_S)
            piece = connection.recv(65536)
            if not piece:
                break
            received += piece
    except TimeoutError:
        return Answer(None, bytes(received), hung=whole)
    except OSError:
        pass
    found = _STATUS.match(received)
    return Answer(int(found[1]) if found else None, bytes(received).partition(b"\r\n\r\n")[2])


def _is_complete(received: bytearray) -> bool:
    head, gap, body = bytes(received).partition(b"\r\n\r\n")
    if not gap:
        return False
    lowered = head.lower()
    if b"transfer-encoding: chunked" in lowered:
        return body.endswith(b"0\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", lowered)
    return length is None or len(body) >= int(length[1])
