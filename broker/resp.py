"""RESP2 as bytes: packs commands, and parses replies as they arrive."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from hiredis import Reader
from redis.exceptions import (
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from orcastream.broker.scripts import Command

_Part = TypeVar("_Part")
_IN_SCRIPT: Final = re.compile(r"@user_script: ?\d+: -?([A-Z]+) ")
"""Redis 6.2 reports an error of a command in a script under the code ERR, and its own code here."""


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
_NO_RIGHTS: Final = ("NOPERM", "The user executing the script can't", "ACL failure in script")
"""The words by which servers refuse a command or a key to this user; they mostly do not say whom, and never which key.
"""
_RIGHTS: Final = "ACL LOG on the server tells the user and what it may not use; docs/operations.md lists users' rights"


def pack(command: Command) -> bytes:
    """Return one command as bytes."""
    parts = [b"*%d\r\n" % len(command)]
    for arg in command:
        raw = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


def pack_parts(*parts: str | bytes) -> bytes:
    """Return further parts of a command whose number of parts and first parts have been written."""
    return b"".join(
        [b"$%d\r\n%b\r\n" % (len(raw), raw) for raw in (p if isinstance(p, bytes) else p.encode() for p in parts)]
    )


def pack_many(commands: Iterable[Command]) -> bytes:
    """Return several commands as bytes, in order."""
    return b"".join([pack(command) for command in commands])


def fields_of(flat: Sequence[_Part]) -> dict[_Part, _Part]:
    """Return the fields of a stream entry or hash (name, value, ... in RESP2); raise ValueError for an odd count."""
    parts = iter(flat)
    return dict(zip(parts, parts, strict=True))


def parse_error(text: str) -> ResponseError:
    """Return the exception for an error reply, with `status_code` set to its code; of the text, nothing is left out.

    The text of a refusal in a script begins with the refusal, as in Redis 7, and not with the place in the script.
    """
    if any(words in text for words in _NO_RIGHTS):
        text = f"{text} ({_RIGHTS})"
    if in_script := _IN_SCRIPT.search(text):
        place, text = text[: in_script.start(1)], text[in_script.start(1) :]
        text = f"{text} ({place.rstrip(' -:')})"
    word = text.partition(" ")[0]
    code = word if word.isupper() else "ERR"
    return _ERRORS.get(code, ResponseError)(text, status_code=code)


class ReplyParser:
    """Turns bytes, split anywhere, into replies: bytes, int, None, list, or a ResponseError (also inside lists)."""

    def __init__(self) -> None:
        self._reader = Reader(protocolError=ProtocolError, replyError=parse_error, notEnoughData=_MORE)

    def feed(self, data: bytes) -> list[Any]:
        """Return the replies that `data` completes; raise ProtocolError if it is not RESP2."""
        reader = self._reader
        reader.feed(data)
        gets, replies = reader.gets, []
        while (reply := gets()) is not _MORE:
            replies.append(reply)
        return replies


_MORE = object()
