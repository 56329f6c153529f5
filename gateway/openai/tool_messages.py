"""The tool calls in a message of an assistant, as clients send them back."""

import re
from typing import Any, Final

from orcastream.gateway.openai.endpoint import Json
from orcastream.gateway.openai.known_names import check_names
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.json_text import parse_json
from orcastream.schemas.utf8_text import MAX_VALUE_DEPTH, check_text

MAX_CALLS: Final = 128
MAX_CALL_ID_LENGTH: Final = 256
_ALLOWED_ARGUMENTS: Final = "text, which is JSON of one object unless the call was cut"
_HALVES: Final = re.compile("[\ud800-\udfff]")
"""Unpaired surrogates: JSON can encode them, but no text contains them."""


def read_calls(field: str, value: object) -> list[Json]:
    """Read the calls into the form of `template_call`. Raises InvalidRequest naming the defect."""
    if not isinstance(value, list) or len(value) > MAX_CALLS:
        raise InvalidRequest(field, value, f"an array of at most {MAX_CALLS} calls")
    return [_call(f"{field}.{number}", each) for number, each in enumerate(value)]


def read_call_id(field: str, value: object) -> str:
    """Read the id of a call."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_CALL_ID_LENGTH:
        raise InvalidRequest(field, value, f"the id of a call, 1 to {MAX_CALL_ID_LENGTH} characters")
    return check_text(field, value)


def call_schema() -> Json:
    """Return the JSON schema of one call."""
    function = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "arguments": {
                "type": "string",
                "description": "JSON of one object, or empty; anything else means that the call was cut.",
            },
        },
        "required": ["name", "arguments"],
    }
    call_id = {"type": "string", "minLength": 1, "maxLength": MAX_CALL_ID_LENGTH}
    properties = {"id": call_id, "type": {"enum": ["function", None]}, "function": function}
    return {"type": "object", "properties": properties, "required": ["id", "function"]}


def _call(field: str, value: object) -> Json:
    if not isinstance(value, dict) or value.get("type") not in (None, "function"):
        raise InvalidRequest(field, value, "an object of the type function")
    check_names(field, value, ("id", "type", "function", "index"))
    function = value.get("function")
    call_id, field = read_call_id(f"{field}.id", value.get("id")), f"{field}.function"
    if not isinstance(function, dict):
        raise InvalidRequest(field, function, "an object with name and arguments")
    check_names(field, function, ("name", "arguments", "parsed_arguments"))
    name = read_function_name(f"{field}.name", function.get("name"))
    arguments = read_arguments(f"{field}.arguments", function.get("arguments"))
    return template_call(call_id, name, arguments)


def template_call(call_id: str, name: str, arguments: Json | None) -> Json:
    """Return a call as templates take it; without arguments it was cut, and is not rendered (see
    `without_cut_calls`).
    """
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def read_function_name(field: str, value: object) -> str:
    """Read the name of the called function."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(field, value, "the name of a function")
    return check_text(field, value)


def read_arguments(field: str, value: object) -> Json | None:
    """Return a call's arguments as templates may get them; None if the text is not a JSON object: the call was cut.

    Empty text means no arguments. Unpaired surrogates become U+FFFD. Nesting deeper than MAX_VALUE_DEPTH is not given
    to templates and also returns None. An answer with such a call is returned unchanged.
    """
    if not isinstance(value, str):
        raise InvalidRequest(field, value, _ALLOWED_ARGUMENTS)
    raw = check_text(field, value).encode()
    try:
        arguments = parse_json(raw, parse_constant=_no_number) if raw else {}
        return _shown(arguments, MAX_VALUE_DEPTH) if isinstance(arguments, dict) else None
    except (ValueError, RecursionError):
        return None


def _shown(value: Any, depth: int) -> Any:
    """Return a JSON value as templates may get it. Raises ValueError if it is nested more deeply than `depth`."""
    if isinstance(value, str):
        return _HALVES.sub("\ufffd", value)
    if not isinstance(value, dict | list):
        return value
    if not depth:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_shown(inner, depth - 1) for inner in value]
    return {_HALVES.sub("\ufffd", name): _shown(inner, depth - 1) for name, inner in value.items()}


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
