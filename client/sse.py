"""Server-sent events as the gateway writes them."""

from dataclasses import dataclass, field


@dataclass
class SseParser:
    """Parses lines; returns the data of each event that a line completes."""

    _data: list[str] = field(default_factory=list)

    def feed(self, line: str) -> str | None:
        """Return an event's data at the blank line after it, and None otherwise."""
        if not line:
            data, self._data = self._data, []
            return "\n".join(data) if data else None
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return None
