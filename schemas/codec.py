"""Payload bytes ↔ plain dicts: msgpack, or JSON where the first byte is `{`."""

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgpack

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.json_text import JsonBounds, parse_json
from orcastream.schemas.limits import MAX_PROMPT_TOKENS

_packer = msgpack.Packer()
"""One packer for all callers: `pack` leaves no state behind."""


class Form(StrEnum):
    """How a payload is encoded; replies use the form of their request."""

    MSGPACK = "msgpack"
    JSON = "json"


def form_of(payload: bytes) -> Form:
    """Return the form of a payload, given by its first byte (a msgpack map never starts with `{`)."""
    return Form.JSON if payload[:1] == b"{" else Form.MSGPACK


def encode(body: dict[str, Any], form: Form) -> bytes:
    """Return `body` as bytes in the given form; JSON is compact, UTF-8 and free of NaN."""
    if form is Form.JSON:
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    packed: bytes = _packer.pack(body)
    return packed


pack_value: Callable[[Any], bytes] = _packer.pack
"""Pack one value as msgpack, for callers that assemble a payload's bytes themselves."""


def decode(payload: bytes, *, unique_keys: bool = False, max_parts: int | None = None) -> dict[str, Any]:
    """Return the dict in `payload`; raise InvalidRequest naming `payload` when it is not one. JSON is UTF-8.

    If a key appears more than once, its last value counts; with `unique_keys`, raise InvalidRequest naming the key.
    With `max_parts`, a payload with more maps and arrays, or more names, is refused before all of them are built;
    JSON is refused before it is parsed.
    """
    parts = _Parts(unique_keys, max_parts) if unique_keys or max_parts is not None else None
    map_hook, list_hook = (None, None) if parts is None else (parts.map, parts.array)
    try:
        if form_of(payload) is Form.JSON:
            if max_parts is not None:
                JsonBounds(max_parts, max_parts, MAX_PROMPT_TOKENS + max_parts).check(payload, "payload")
            body = parse_json(payload, map_hook)
        else:
            body = msgpack.unpackb(
                payload,
                object_pairs_hook=map_hook,
                list_hook=list_hook,
                ext_hook=_no_extension_type,
                max_map_len=-1 if max_parts is None else max_parts,
                max_array_len=-1 if max_parts is None else MAX_PROMPT_TOKENS + 1,
            )
    except InvalidRequest:
        raise
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        reason = str(error) or type(error).__name__  # some of msgpack's errors have only their name
        allowed = f"one msgpack map or JSON object, whose first byte is {{ ({reason})"
        raise InvalidRequest("payload", payload[:32], allowed) from None
    if not isinstance(body, dict) or not set(map(type, body)) <= {str}:
        raise InvalidRequest("payload", body, "one msgpack map or JSON object with string keys")
    return body


class _Parts:
    """The hooks that a decoder calls for each map and array, inner ones first."""

    def __init__(self, unique_keys: bool, most: int | None) -> None:
        self._unique_keys = unique_keys
        self._most = most
        self._count = 0

    def map(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._count_one()
        found = dict(pairs)
        if self._unique_keys and len(found) < len(pairs):
            twice, _ = first_repeated(pairs)
            values = tuple(value for key, value in pairs if key == twice)
            raise InvalidRequest(str(twice), values, "one value: no key may appear more than once")
        return found

    def array(self, items: list[Any]) -> list[Any]:
        self._count_one()
        return items

    def _count_one(self) -> None:
        self._count += 1
        if self._most is not None and self._count > self._most:
            raise InvalidRequest("payload", f"more than {self._most} maps and arrays", f"at most {self._most}")


def _no_extension_type(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def first_repeated(pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the first repeated key and its second value, in one pass; raise ValueError if no key repeats."""
    known: set[Any] = set()
    for key, value in pairs:
        if key in known:
            return key, value
        known.add(key)
    raise ValueError("no key appears twice")
