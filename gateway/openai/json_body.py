"""The JSON object in a body, read strictly."""

from typing import Any, Final

from orcastream.schemas.codec import first_repeated
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.json_text import JsonBounds, finite, no_constant, parse_json

MAX_BODY_PARTS: Final = 65_536
"""Maps and arrays in a body; a chat of 10,000 messages, each an array of parts, has 30,000."""
MAX_BODY_STRINGS: Final = 50_000
"""Names and texts in a body; a chat of 10,000 messages has 40,000."""
MAX_BODY_VALUES: Final = 262_144
"""Values in a body's maps and arrays, in addition to the context's size: longer arrays of ids are not even read."""


def read_json_object(raw: bytes, max_values: int) -> dict[str, Any]:
    """Parse one object of UTF-8 JSON. Raises InvalidRequest naming `body`, or a key that is repeated in one object.

    `max_values`: how many values its maps and arrays may hold in total, in addition to MAX_BODY_VALUES.
    """
    JsonBounds(MAX_BODY_PARTS, MAX_BODY_STRINGS, MAX_BODY_VALUES + max_values).check(raw, "body")
    try:
        body = parse_json(raw, _unique, no_constant, finite)
    except InvalidRequest:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("body", raw[:32], f"one JSON object ({error})") from None
    if not isinstance(body, dict):
        raise InvalidRequest("body", body, "one JSON object")
    return body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, value = first_repeated(pairs)
        raise InvalidRequest(name, value, "one value: no name may occur more than once")
    return found
