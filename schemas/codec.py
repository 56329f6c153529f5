"""Payload bytes ↔ plain dicts: msgpack, or JSON where the first byte is `{`."""

import json
from enum import StrEnum
from typing import Any

import msgpack

from schemas.errors import InvalidRequest


class Form(StrEnum):
    """How a payload is written; replies use the form of their request."""

    MSGPACK = "msgpack"
    JSON = "json"


def form_of(payload: bytes) -> Form:
    """The form of a payload, told by its first byte (a msgpack map never starts with `{`)."""
    return Form.JSON if payload[:1] == b"{" else Form.MSGPACK


def encode(body: dict[str, Any], form: Form) -> bytes:
    """`body` as bytes in the given form; JSON is compact, UTF-8 and free of NaN."""
    if form is Form.JSON:
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    packed: bytes = msgpack.packb(body)
    return packed


def decode(payload: bytes, *, unique_keys: bool = False) -> dict[str, Any]:
    """The dict in `payload`; InvalidRequest naming `payload` when it is not one. JSON is UTF-8.

    Of a key that stands more than once the last value counts; with `unique_keys`, InvalidRequest naming the key.
    """
    hook = _unique if unique_keys else None
    try:
        if form_of(payload) is Form.JSON:
            body = json.loads(payload.decode(), object_pairs_hook=hook)
        else:
            body = msgpack.unpackb(payload, object_pairs_hook=hook)
    except InvalidRequest:
        raise
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise InvalidRequest("payload", payload[:32], f"one msgpack map or JSON object ({error})") from None
    if not isinstance(body, dict) or not all(isinstance(key, str) for key in body):
        raise InvalidRequest("payload", body, "one msgpack map or JSON object with string keys")
    return body


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for position, key in enumerate(keys) if key in keys[:position])
        values = tuple(value for key, value in pairs if key == twice)
        raise InvalidRequest(str(twice), values, "one value: no key may stand more than once")
    return found
