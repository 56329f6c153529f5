"""RESP2 as bytes: packing commands, and reading replies as they arrive."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from redis.exceptions import (
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from broker.scripts import Command

_Part = TypeVar("_Part")


class LoadingError(ResponseError):
    """The server is loading its data set."""


class MisconfiguredError(ResponseError):
    """The server refuses writes because it cannot persist them (MISCONF)."""


class ProtocolError(Exception):
    """Bytes that are not RESP2."""


_ERRORS: dict[str, type[ResponseError]] = {
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": LoadingError,
    "MISCONF": MisconfiguredError,
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "OOM": OutOfMemoryError,
    "READONLY": ReadOnlyError,
}


def pack(command: Command) -> bytes:
    """One command as bytes."""
    parts = [b"*%d\r\n" % len(command)]
    for arg in command:
        raw = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


def pack_many(commands: Iterable[Command]) -> bytes:
    """Several commands as bytes, in order."""
    return b"".join([pack(command) for command in commands])


def fields_of(flat: Sequence[_Part]) -> dict[_Part, _Part]:
    """The fields of a stream entry or a hash, which RESP2 sends as name, value, name, value; ValueError for a half."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def parse_error(line: bytes) -> ResponseError:
    """The exception for an error reply, with `status_code` set to its first word; the text stays whole."""
    text = line.decode(errors="replace")
    code = text.partition(" ")[0]
    code = code if code.isupper() else "ERR"
    return _ERRORS.get(code, ResponseError)(text, status_code=code)


class ReplyParser:
    """Turns bytes, cut anywhere, into replies: bytes, int, None, list, or a ResponseError (also inside lists).

    Keeps its place inside a large reply, so that each byte is looked at once however it is cut.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0
        self._open: list[tuple[list[Any], int]] = []

    def feed(self, data: bytes) -> list[Any]:
        """The replies that `data` completes; ProtocolError when it is not RESP2."""
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:
            return []
        buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        replies: list[Any] = []
        try:
            rest = buffer[self._parse(buffer, replies) :]
        except (ValueError, IndexError):
            raise ProtocolError(f"not RESP2: {buffer[:40]!r}") from None
        self._chunks = [rest] if rest else []
        self._have = len(rest)
        return replies

    def _parse(self, buffer: bytes, replies: list[Any]) -> int:
        """Parse whole elements; the position behind the last one. Sets the number of bytes needed to go on."""
        position, size, find, open_lists = 0, len(buffer), buffer.find, self._open
        while position < size:
            end = find(b"\r\n", position)
            if end < 0:
                self._need = 0
                return position
            kind = buffer[position]
            value: Any = None
            if kind == 36:  # $
                length = int(buffer[position + 1 : end])
                start, end = end + 2, end
                if length >= 0:
                    end = start + length
                    if size < end + 2:
                        self._need = end + 2 - position
                        return position
                    value = buffer[start:end]
            elif kind == 42:  # *
                length = int(buffer[position + 1 : end])
                if length > 0:
                    open_lists.append(([], length))
                    position = end + 2
                    continue
                value = [] if length == 0 else None
            else:
                value = _scalar(kind, buffer[position + 1 : end])
            position = end + 2
            while open_lists:
                items, length = open_lists[-1]
                items.append(value)
                if len(items) < length:
                    break
                open_lists.pop()
                value = items
            else:
                replies.append(value)
        self._need = 0
        return position


def _scalar(kind: int, line: bytes) -> bytes | int | ResponseError:
    if kind == 58:  # :
        return int(line)
    if kind == 43:  # +
        return line
    if kind == 45:  # -
        return parse_error(line)
    raise ValueError(f"reply type {kind}")
