"""The JSON object in a body, read strictly."""

import json
from typing import Any, Final

from schemas.codec import check_json_parts, first_repeated
from schemas.errors import InvalidRequest

MAX_BODY_PARTS: Final = 65_536
"""Maps and arrays in a body; a chat of 10,000 messages, each an array of parts, has 30,000."""


def read_json_object(raw: bytes) -> dict[str, Any]:
    """One object of UTF-8 JSON; InvalidRequest naming `body`, or a key that stands twice in one object."""
    check_json_parts(raw, MAX_BODY_PARTS, "body")
    try:
        body = json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_unique)
    except InvalidRequest:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("body", raw[:32], f"one JSON object ({error})") from None
    if not isinstance(body, dict):
        raise InvalidRequest("body", body, "one JSON object")
    return body


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, value = first_repeated(pairs)
        raise InvalidRequest(name, value, "one value: no name may stand more than once")
    return found
