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


def decode(payload: bytes) -> dict[str, Any]:
    """The dict in `payload`; InvalidRequest naming `payload` when it is not one. JSON is UTF-8."""
    try:
        body = json.loads(payload.decode()) if form_of(payload) is Form.JSON else msgpack.unpackb(payload)
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise InvalidRequest("payload", payload[:32], f"one msgpack map or JSON object ({error})") from None
    if not isinstance(body, dict) or not all(isinstance(key, str) for key in body):
        raise InvalidRequest("payload", body, "one msgpack map or JSON object with string keys")
    return body
