"""Server-sent events as the gateway writes them: data and comments."""

import re
from dataclasses import dataclass, field

_SERVED_BY = re.compile(r"^: ?worker (\S+)(?: epoch (\d+))?$")


@dataclass(frozen=True)
class ServedBy:
    """The comment that a worker has taken the request up: at its start, and after each takeover."""

    worker: str
    epoch: int = 0
    """The attempt's fencing number; 0 where it is not told."""


@dataclass
class SseParser:
    """Feed it lines; it returns what a line completes: the data of an event, or who serves the request."""

    _data: list[str] = field(default_factory=list)

    def feed(self, line: str) -> str | ServedBy | None:
        """The text of an event's data at the blank line behind it, a ServedBy for that comment, else None."""
        if not line:
            data, self._data = self._data, []
            return "\n".join(data) if data else None
        if line.startswith(":"):
            match = _SERVED_BY.match(line)
            return ServedBy(match[1], int(match[2] or 0)) if match else None
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return None
