"""Server-sent events as the gateway writes them: data and comments."""

import re
from dataclasses import dataclass, field

_SERVED_BY = re.compile(r"^: ?worker (\S+)(?: epoch (\d+))?$")


@dataclass(frozen=True)
class ServedBy:
    """The comment that a worker has started on the request: at its start, and after each takeover."""

    worker: str
    epoch: int = 0
    """The attempt's fencing number; 0 if unknown."""


@dataclass
class SseParser:
    """Parses lines; returns what each line completes: the data of an event, or the worker that serves the request."""

    _data: list[str] = field(default_factory=list)

    def feed(self, line: str) -> str | ServedBy | None:
        """Return an event's data at the blank line after it, a ServedBy for that comment, and None otherwise."""
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
