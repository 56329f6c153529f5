"""Reads server-sent events as a browser would."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Seen:
    """One event; `last_id` is the id that a client would send back now, `id_line` that of a browser."""

    last_id: str | None
    data: Any = None
    id_line: str | None = None

    @property
    def done(self) -> bool:
        return self.data == "[DONE]"

    @property
    def error(self) -> Any:
        return self.data.get("error") if isinstance(self.data, dict) else None

    @property
    def texts(self) -> dict[int, str]:
        """The new text per choice."""
        if not isinstance(self.data, dict) or "choices" not in self.data:
            return {}
        return {c["index"]: c["delta"].get("content", "") if "delta" in c else c["text"] for c in self.data["choices"]}


async def read(response: httpx.Response, last_id: str | None = None) -> AsyncIterator[Seen]:
    """Yield events as they arrive."""
    data = id_line = None
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            id_line = line[4:]
        elif line.startswith("data: "):
            raw = line[6:]
            data = raw if raw == "[DONE]" else json.loads(raw)
            last_id = data.get("event_id", last_id) if isinstance(data, dict) else last_id
        elif not line and data is not None:
            yield Seen(last_id, data, id_line=id_line)
            data = None


def joined(events: list[Seen], choice: int = 0) -> str:
    """Return the text of one choice."""
    return "".join(event.texts.get(choice, "") for event in events)
