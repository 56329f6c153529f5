"""JSON on one line, with lists that are already encoded."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

_SEPARATORS: Final = (",", ":")
_encode: Final = json.JSONEncoder(ensure_ascii=False).encode
_LINE_ENDS: Final = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
"""Line ends in Unicode, and so for clients that split by its rules (httpx), although JSON allows them unescaped."""
_MARK: Final = token_hex(16)
"""Placeholder of a list while the rest is encoded. Random and never sent, so no client's text contains it."""
_QUOTED_MARK: Final = f'"{_MARK}"'.encode()


@dataclass(frozen=True, slots=True)
class EncodedList:
    """A list whose items are encoded, several per part, as `encoded_items` writes them. No part is empty."""

    parts: Sequence[bytes]


def encoded(data: Any) -> bytes:
    """Return JSON on one line, by any definition of a line end. `data` may contain an EncodedList anywhere."""
    lists: list[EncodedList] = []

    def mark(value: object) -> str:
        if not isinstance(value, EncodedList):
            raise TypeError(f"{type(value).__name__} cannot be JSON")
        lists.append(value)
        return _MARK

    body = _on_one_line(json.JSONEncoder(ensure_ascii=False, separators=_SEPARATORS, default=mark).encode(data))
    return _filled(body, lists) if lists else body


def encoded_text(text: str) -> bytes:
    """As `encoded`, for one text: called for every token."""
    return _on_one_line(_encode(text))


def encoded_items(items: Sequence[Any]) -> bytes:
    """Return the items of a list, without its brackets."""
    return encoded(items)[1:-1]


def _on_one_line(body: str) -> bytes:
    return (body if body.isascii() else body.translate(_LINE_ENDS)).encode()


def _filled(body: bytes, lists: Sequence[EncodedList]) -> bytes:
    """Put the lists in the places of their marks; long parts are copied once."""
    head, *rest = body.split(_QUOTED_MARK)
    pieces = [head]
    for one, behind in zip(lists, rest, strict=True):
        pieces.append(b"[")
        for number, part in enumerate(one.parts):
            pieces += (b",", part) if number else (part,)
        pieces += (b"]", behind)
    return b"".join(pieces)
