"""Output of the commands that inspect a queue: tables, facts, JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_MOST_SHOWN: Final = 120


class Lines:
    """Rows printed as they arrive: a table, or one JSON object per line. Columns map names to minimum widths."""

    def __init__(self, columns: Mapping[str, int], *, as_json: bool) -> None:
        self._columns = columns
        self._as_json = as_json
        self._has_head = False

    def show(self, row: Mapping[str, Any]) -> None:
        """Print one row, the first of a table after a header. Only JSON objects show values without a column."""
        if self._as_json:
            print(json.dumps(row))
            return
        if not self._has_head:
            self._has_head = True
            print(self._line([name.removesuffix("_s") for name in self._columns]))
        print(self._line([shown(row.get(name), seconds=name.endswith("_s")) for name in self._columns]))

    def _line(self, cells: Sequence[str]) -> str:
        return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, self._columns.values(), strict=True)).rstrip()


def show_one(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the facts about one object: a line per fact, or one JSON object."""
    if as_json:
        print(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value)
        print(f"{name:<{width}}  {_printable(text)}")


def shown(value: object, *, seconds: bool) -> str:
    """Return one cell of a table."""
    if value is None:
        return "-"
    if seconds and isinstance(value, int | float):
        return _duration(value)
    text = _printable(",".join(map(str, value)) if isinstance(value, tuple | list) else str(value))
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def _duration(seconds: float) -> str:
    sign, left = ("-", -seconds) if seconds < 0 else ("", seconds)
    if left < 60:
        return f"{sign}{left:.1f}s"
    minutes, hours, days = int(left // 60), int(left // 3600), int(left // 86400)
    if hours == 0:
        return f"{sign}{minutes}m{int(left % 60):02}s"
    return f"{sign}{hours}h{minutes % 60:02}m" if days == 0 else f"{sign}{days}d{hours % 24:02}h"


def _printable(text: str) -> str:
    """Return the text with unprintable characters escaped: what is read from Redis must not control the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
