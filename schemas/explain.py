"""Turns pydantic's validation errors into InvalidRequest messages."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.limits import NAME_PATTERN, NAME_RULE


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _pattern(context: Mapping[str, Any]) -> str:
    return NAME_RULE if NAME_PATTERN.pattern in context["pattern"] else f"text that matches {context['pattern']}"


_ALLOWED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda _: "a value: the field is required",
    "extra_forbidden": lambda _: "no such parameter exists",
    "invalid_key": lambda _: "parameter names are UTF-8 text",
    "int_type": lambda _: "an integer",
    "int_parsing": lambda _: "an integer",
    "float_type": lambda _: "a number",
    "finite_number": lambda _: "a finite number",
    "bool_type": lambda _: "true or false",
    "string_type": lambda _: "text",
    "string_unicode": lambda _: "UTF-8 text without lone surrogates",
    "tuple_type": lambda _: "an array",
    "list_type": lambda _: "an array",
    "dict_type": lambda _: "an object",
    "model_type": lambda _: "an object",
    "too_short": lambda context: f"at least {_count(context['min_length'], 'item')}",
    "too_long": lambda context: f"at most {_count(context['max_length'], 'item')}",
    "string_too_short": lambda context: f"at least {_count(context['min_length'], 'character')}",
    "string_too_long": lambda context: f"at most {_count(context['max_length'], 'character')}",
    "greater_than": lambda context: f"more than {context['gt']:g}",
    "greater_than_equal": lambda context: f"at least {context['ge']}",
    "less_than_equal": lambda context: f"at most {context['le']}",
    "literal_error": lambda context: str(context["expected"]),
    "string_pattern_mismatch": _pattern,
    "value_error": lambda context: str(context["error"]),
}


MAX_COMPLAINTS = 1000
"""Above this many errors the first is not determined: pydantic describes all of them to return one."""


def first_complaint(error: ValidationError, whole: str = "payload") -> InvalidRequest:
    """Return the first error about the input; `whole` names the input where no field can be named."""
    if error.error_count() > MAX_COMPLAINTS:
        return InvalidRequest(whole, f"{error.error_count()} errors", "none")
    first = error.errors(include_url=False)[0]
    rule = first.get("ctx", {}).get("error")
    if isinstance(rule, InvalidRequest):  # parameters that conflict: the rule names the one to change
        return rule
    field = ".".join(str(part) for part in first["loc"]) or whole
    explain = _ALLOWED.get(first["type"])
    allowed = explain(first.get("ctx", {})) if explain else first["msg"]
    return InvalidRequest(field, None if first["type"] == "missing" else first["input"], allowed)
