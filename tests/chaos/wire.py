"""An independent implementation of the documented protocol: key names, entries, events. Imports no product code."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

NAMESPACE = "orca"
MODEL = "orca-demo"
CLASSES = ("realtime", "high", "normal", "low")
GROUP = "workers"
TERMINAL = ("finished", "error")


@dataclass(frozen=True, slots=True)
class Queue:
    """The keys of the model's queue, which has the given number of lanes."""

    lanes: int = 1

    def requests(self, priority_class: str, request_id: str) -> str:
        """Return the request stream of one class that a request belongs to."""
        return f"{self._tagged(self._lane(request_id))}:requests:{priority_class}"

    def cancel(self, request_id: str) -> str:
        """Return the key that exists when the request is canceled."""
        return f"{self._tagged(self._lane(request_id))}:cancel:{request_id}"

    def seen(self, request_id: str) -> str:
        """Return the key that names the request's entry: `class entry-id`, and perhaps more words."""
        return f"{self._tagged(self._lane(request_id))}:seen:{request_id}"

    def streams(self) -> list[str]:
        """Return all request streams."""
        return [f"{self._tagged(lane)}:requests:{name}" for lane in range(self.lanes) for name in CLASSES]

    def all_of(self, kind: str) -> list[str]:
        """Return the keys of one kind, such as `dead`, of all lanes."""
        return [f"{self._tagged(lane)}:{kind}" for lane in range(self.lanes)]

    def _lane(self, request_id: str) -> int:
        return zlib.crc32(request_id.encode()) % self.lanes

    def _tagged(self, lane: int) -> str:
        return f"{NAMESPACE}:{{{MODEL}{f':{lane}' if lane else ''}}}"


CONTROL_KEY = f"{NAMESPACE}:{{{MODEL}}}:control"


def reply_key(request_id: str) -> str:
    """Return the key of one request's reply log."""
    return f"{NAMESPACE}:reply:{{{zlib.crc32(request_id.encode()) & 0xFF:02x}}}:{request_id}"


def entry(request_id: str, payload: Mapping[str, Any], deadline_ms: int) -> dict[str, str | bytes]:
    """Return the fields of a request entry."""
    return {"id": request_id, "v": "1", "deadline": str(deadline_ms), "payload": msgpack.packb(payload)}


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a reply log. `type` is started, tokens, finished or error; `event` its payload."""

    id: str
    type: str
    event: dict[str, Any]

    @classmethod
    def read(cls, entry_id: bytes, fields: Mapping[bytes, bytes]) -> "LogEntry":
        """Read an entry from Redis's reply. Raises KeyError or ValueError if it is not an event."""
        return cls(entry_id.decode(), fields[b"type"].decode(), msgpack.unpackb(fields[b"payload"]))

    @property
    def is_terminal(self) -> bool:
        """Whether it ends the log."""
        return self.type in TERMINAL

    @property
    def outcome(self) -> str:
        """`finished`, or the code of the error."""
        return str(self.event["error"]["code"]) if self.type == "error" else self.type
