"""Checks on untrusted text, in which JSON escapes can encode what UTF-8 cannot."""

from collections.abc import Mapping
from typing import Final

from orcastream.schemas.errors import InvalidRequest

MAX_VALUE_DEPTH: Final = 64
"""Of maps and arrays in tools, in the arguments of calls that a model sees, and in a client's messages."""


def check_text(field: str, text: str) -> str:
    """Return the text; raise InvalidRequest if it holds half a surrogate pair, which is not text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, text, "UTF-8 text without lone surrogates") from None
    return text


def check_value(field: str, value: object, depth: int = MAX_VALUE_DEPTH) -> None:
    """Raise InvalidRequest if a JSON value, names included, holds invalid text or is nested too deeply."""
    if isinstance(value, str):
        check_text(field, value)
    elif isinstance(value, Mapping | list) and not depth:
        raise InvalidRequest(field, value, f"at most {MAX_VALUE_DEPTH} maps and arrays inside each other")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            check_value(f"{field}.{check_text(field, name)}", inner, depth - 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            check_value(f"{field}.{number}", inner, depth - 1)
