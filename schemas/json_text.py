"""Bounds and parsing for untrusted JSON: its size is checked before any of it is parsed."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from orcastream.schemas.errors import InvalidRequest, shown

_STRING: Final = re.compile(rb'"[^"]*+(?:"|\Z)')
"""A JSON string without escapes, or an unterminated one."""
_MANY_VALUES: Final = 131_072
_LONG_VALUE_BYTES: Final = 32
"""With more values than this, or longer values on average, the numbers take long to parse. Python code then parses
them, so that other threads can run between its calls; token ids parse faster without it."""

Hook = Callable[[list[tuple[str, Any]]], Any]


@dataclass(frozen=True, slots=True)
class JsonBounds:
    """The most that one text may hold. A parser holds the interpreter until it has built everything.

    `parts` counts maps and arrays, `strings` names and texts, `values` the items of maps and arrays.
    """

    parts: int
    strings: int
    values: int

    def check(self, raw: bytes, field: str) -> None:
        """Raise InvalidRequest naming `field` if the text holds more, whatever its strings contain."""
        if self._exceeded(raw) is None:
            return
        # Once escapes are removed, every remaining quotation mark begins or ends a string.
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
    """Return the value of `raw`, in UTF-8; `hook` gets the pairs of each map. Raises ValueError or RecursionError."""
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
    """Reject, as `parse_constant`, the constants that Python's JSON accepts and JSON does not."""
    raise ValueError(f"{name} is not JSON")


def finite(text: str) -> float:
    """Reject, as `parse_float`, a number like 1e999, which would be written back as invalid JSON."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{shown(text)} is too large for a number")
    return value


def _integer(text: str) -> int:
    return int(text)


def _number(text: str) -> float:
    return float(text)
