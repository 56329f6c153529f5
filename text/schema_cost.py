"""Refuses JSON Schemas that llguidance would take hours and all memory to compile: no limit of its own bounds them."""

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from math import lcm
from typing import Any, Final

from orcastream.text.json_schema import Schema

_MOST_REMAINDERS: Final = 200_000
"""Multiples of m take about m states of half a kilobyte each."""
_MOST_PATTERNS: Final = 10
"""Deciding whether one text can match ten patterns takes about 30 ms; each further pattern takes four times as long."""
_JOINING: Final = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
_WITH_TEXTS: Final = frozenset(
    {"pattern", "format", "properties", "patternProperties", "additionalProperties", "items", "prefixItems"}
)
_ANYWHERE: Final = ""
"""Stands for the property name of a text whose schema may apply to any property."""


def too_costly(schema: Schema) -> str:
    """Return why `schema` is too costly to compile, or an empty string."""
    multiples: list[int] = []
    patterns: defaultdict[str, set[str]] = defaultdict(set)
    joins = False
    for name, part in _within(schema):
        multiples += [digits] if (digits := _multiple(part)) else []
        patterns[name] |= {f"{keyword} {part[keyword]}" for keyword in ("pattern", "format") if keyword in part}
        joins = joins or _joins(part)
    if (lcm(*multiples) * len(multiples) if joins else sum(multiples)) > _MOST_REMAINDERS:
        return "multipleOf is too large, or the least common multiple of those that may apply to one number"
    most = max(len(found | patterns[_ANYWHERE]) for found in patterns.values())
    if joins and most > _MOST_PATTERNS:
        return f"more than {_MOST_PATTERNS} patterns and formats may apply to one text"
    return ""


def _within(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield `schema` and all objects in it, each with its property name: a reference may lead to any of them."""
    left: list[tuple[str, Any]] = [(_ANYWHERE, schema)]
    while left:
        name, part = left.pop()
        if isinstance(part, list):
            left += [(name, each) for each in part]
        elif isinstance(part, dict):
            yield name, part
            for keyword, value in part.items():
                if keyword == "properties" and isinstance(value, dict):
                    left += value.items()
                else:
                    left.append((name if keyword in _JOINING else _ANYWHERE, value))


def _multiple(schema: Schema) -> int:
    """Return the digits of its `multipleOf` without trailing zeros (powers of ten cost nothing); 0 if it has none."""
    value = schema.get("multipleOf")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int("".join(map(str, Decimal(str(value)).as_tuple().digits)).rstrip("0") or 0)


def _joins(schema: Schema) -> bool:
    """Return whether several parts of `schema` may apply to one text."""
    every = schema.get("allOf")
    several = isinstance(every, list) and len(every) > 1
    return several or (bool(_JOINING & schema.keys()) and len((_JOINING | _WITH_TEXTS) & schema.keys()) > 1)
