"""Marks of what a client wants cached: in messages, their parts, and tools."""

from collections.abc import Mapping
from typing import Any, Final

from orcastream.gateway.openai.endpoint import Json
from orcastream.schemas.errors import InvalidRequest

CACHE_MARKS: Final = ("cache_control", "prompt_cache_breakpoint")
"""Anthropic's and OpenAI's names. They have no effect: prefixes are found by their content."""


def without_cache_marks(field: str, value: Mapping[str, Any]) -> Json:
    """Return an object at that path without its marks. Raises InvalidRequest if one is not an object."""
    for name in CACHE_MARKS:
        mark = value.get(name)
        if not isinstance(mark, dict | None):
            raise InvalidRequest(f"{field}.{name}", mark, "an object")
    return {name: each for name, each in value.items() if name not in CACHE_MARKS}


def mark_schemas() -> Json:
    """Return the JSON schemas of the marks, by name."""
    mark = {"type": ["object", "null"], "description": "No effect, as `prompt_cache_key`."}
    return dict.fromkeys(CACHE_MARKS, mark)
