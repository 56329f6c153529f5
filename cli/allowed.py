"""The allowed values of a setting in words, derived from the field itself, so that help, errors and docs agree."""

import re
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_settings.sources.types import _CliPositionalArg

_UNIT = re.compile(r"\s*\[([^\]]+)\]\s*$")
_BOUNDS = ("ge", "gt", "le", "lt")


def allowed_values(field: FieldInfo) -> str | None:
    """Return e.g. `0 to 65535`, `auto, cpu, cuda` or `true, false`; None if the type says it all.

    A field with a pattern describes its values in `json_schema_extra={"allowed": ...}`.
    """
    if isinstance(field.json_schema_extra, dict) and (words := field.json_schema_extra.get("allowed")):
        return str(words)
    kinds = _kinds(field.annotation)
    if choices := own_choices(field):
        return ", ".join(choices)
    bounds = {name: getattr(mark, name) for mark in field.metadata for name in _BOUNDS if hasattr(mark, name)}
    if int in kinds or float in kinds:
        noun = "a number" if float in kinds else "a whole number"
        return f"{noun}, {limits}" if (limits := _limits(bounds)) else noun
    return None


def own_choices(field: FieldInfo) -> tuple[str, ...]:
    """Return all values of an enumerated or boolean field, else an empty tuple."""
    return tuple(choice for kind in _kinds(field.annotation) for choice in _choices(kind))


def is_positional(field: FieldInfo) -> bool:
    """Return whether the value is a positional argument, without a flag."""
    return _CliPositionalArg in field.metadata


def unit(field: FieldInfo) -> str | None:
    """Return the unit in brackets at the end of the description."""
    match = _UNIT.search(field.description or "")
    return match[1] if match else None


def description(field: FieldInfo) -> str:
    """Return the description without its unit."""
    return _UNIT.sub("", field.description or "")


def is_secret(field: FieldInfo) -> bool:
    """Return True for a setting whose value must not be shown."""
    return "Secret" in str(field.annotation)


def _kinds(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, UnionType):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    return [] if annotation is NoneType else [annotation]


def _choices(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    if kind is bool:
        return ["true", "false"]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return []


def _limits(bounds: dict[str, Any]) -> str:
    at_least, more_than, at_most, less_than = (_number(bounds.get(name)) for name in _BOUNDS)
    if at_least and at_most:
        return f"{at_least} to {at_most}"
    low = (at_least and f"at least {at_least}") or (more_than and f"more than {more_than}")
    high = (at_most and f"at most {at_most}") or (less_than and f"less than {less_than}")
    return ", ".join(filter(None, (low, high)))


def _number(bound: Any) -> str:
    if isinstance(bound, float) and bound.is_integer():
        bound = int(bound)
    return "" if bound is None else str(bound)
