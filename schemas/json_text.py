"""JSON from somebody else: how much of it there is, before any of it is parsed."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from orcastream.schemas.errors import InvalidRequest, shown

_STRING: Final = re.compile(rb'"[^"]*+(?:"|\Z)')
"""A JSON string without escapes, or what begins as one and does not end."""
_MANY_VALUES: Final = 131_072
_LONG_VALUE_BYTES: Final = 32
"""So many values, or values of such a length on average, are numbers that take long. Python code reads them, between
whose calls other threads can run; token ids are read faster without."""

Hook = Callable[[list[tuple[str, Any]]], Any]


@dataclass(frozen=True, slots=True)
class JsonBounds:
    """The most that one text may hold. A parser holds the interpreter until it has made all of it.

    `parts` are maps and arrays, `strings` names and texts, `values` what stands in maps and arrays.
    """

    parts: int
    strings: int
    values: int

    def check(self, raw: bytes, field: str) -> None:
        """InvalidRequest naming `field` where there is more, whatever stands inside strings."""
        if self._exceeded(raw) is None:
            return
        # Without escapes every quotation mark left is a string's begin or end.
        bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
        exceeded = self._exceeded(bare)
        if exceeded is not None and bare.count(b'"') // 2 <= self.strings:
            exceeded = self._exceeded(_STRING.sub(b"", bare))
        if exceeded is not None:
            what, most = exceeded
            raise InvalidRequest(field, f"more than {most} {what}", f"at most {most}")

    def _exceeded(self, text: bytes) -> tuple[str, int] | None:
        for what, found, most in (
            ("names and texts", text.count(b'"') // 2, self.strings),
            ("maps and arrays", text.count(b"[") + text.count(b"{"), self.parts),
            ("values", text.count(b","), self.values),
        ):
            if found > most:
                return what, most
        return None


def parse_json(
    raw: bytes,
    hook: Hook | None = None,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], float] | None = None,
) -> Any:
    """What `raw` says, in UTF-8; `hook` gets the pairs of each map. ValueError, RecursionError."""
    commas = raw.count(b",")
    slow = commas > _MANY_VALUES or len(raw) > commas * _LONG_VALUE_BYTES
    return json.loads(
        raw.decode(),
        object_pairs_hook=hook,
        parse_constant=parse_constant,
        parse_int=_integer if slow else None,
        parse_float=parse_float or (_number if slow else None),
    )


def no_constant(name: str) -> float:
    """For `parse_constant`: refuses what Python's JSON has and JSON has not."""
    raise ValueError(f"{name} is not JSON")


def finite(text: str) -> float:
    """For `parse_float`: refuses a number as large as 1e999, which would be told again as what is not JSON."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{shown(text)} is beyond all numbers")
    return value


def _integer(text: str) -> int:
    return int(text)


def _number(text: str) -> float:
    return float(text)
