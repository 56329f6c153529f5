"""Refuses JSON Schemas that llguidance accepts, but does not follow exactly."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from orcastream.text.json_schema import Schema, parts_of

_LARGEST: Final = 2**53
"""llguidance reads numbers as doubles, which hold all integers up to this one, and prints their shortest form."""
_MOST_ZEROS: Final = 22
"""The highest power of ten that a double holds exactly; a number with a higher one is not always read correctly."""
_INT64: Final = (-(2**63), 2**63 - 1)
"""Bounds from here on are taken for these, which keeps an answer within them."""
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")


def not_exact(schema: Schema) -> str:
    """Return why answers could violate `schema`, or an empty string."""
    lower: list[tuple[str, float]] = []
    upper: list[tuple[str, float]] = []
    left = [schema]
    while left:
        part = left.pop()
        left += [inner for _, inner in parts_of(part)]
        for value in _numbers_in([part.get("const"), part.get("enum")]):
            if not _is_kept(value):
                return f"the number {value} has too many digits to be written exactly"
        if why := _of_bounds(part) or _of_names(part):
            return why
        lower += _given(part, _LOWER)
        upper += _given(part, _UPPER)
    for name, bound in lower:
        if name == "exclusiveMinimum" and bound >= 0 and any(bound < most < bound + 1 for _, most in upper):
            return _too_close(name, bound)
    for name, bound in upper:
        if name == "exclusiveMaximum" and bound <= 0 and any(bound - 1 < least < bound for _, least in lower):
            return _too_close(name, bound)
    return ""


def _too_close(name: str, bound: float) -> str:
    """Return the error if the bound itself would be allowed: it is an integer and the other bound is less than 1 away.

    References and `allOf` may apply any two bounds of a schema to one number.
    """
    return (
        f"{name} {bound:g} does not exclude {bound:g} if the other bound is less than 1 away" if bound % 1 == 0 else ""
    )


def _numbers_in(value: Any) -> Iterator[int | float]:
    if isinstance(value, list):
        for inner in value:
            yield from _numbers_in(inner)
    elif isinstance(value, dict):
        yield from _numbers_in([*value.values()])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _is_kept(number: int | float) -> bool:
    """Whether llguidance writes a number with the same value."""
    if isinstance(number, int):
        return abs(number) <= _LARGEST or int(Decimal(repr(float(number)))) == number
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    return int("".join(map(str, digits))) <= _LARGEST and abs(int(exponent)) <= _MOST_ZEROS


def _given(part: Schema, names: tuple[str, ...]) -> list[tuple[str, float]]:
    return [(name, part[name]) for name in names if isinstance(part.get(name), int | float)]


def _of_bounds(part: Schema) -> str:
    """Return why numbers could exceed a bound: it is rounded."""
    least, most = _INT64
    for name, bound in (*_given(part, _LOWER), *_given(part, _UPPER)):
        is_outer = bound <= least if name in _LOWER else bound >= most
        if not is_outer and abs(bound) > _LARGEST and not (least < bound < most and float(bound) == bound):
            return f"{name} {bound} has too many digits to be followed exactly"
    return ""


def _of_names(part: Schema) -> str:
    """Return why an object could have fewer properties: of open names, one may occur twice."""
    least, required = part.get("minProperties"), part.get("required", ())
    is_open = part.get("additionalProperties") is not False or "patternProperties" in part
    if is_open and isinstance(least, int) and least > max(1, len(required)):
        return "minProperties above 1 and the number of required properties needs a closed list of properties"
    return ""
