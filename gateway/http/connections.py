"""What the connections of one server share: their limits, and which of them are idle or about to close."""

from asyncio import Transport, get_running_loop
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

LAST_EVENTS_S: Final = 4.0
"""Time for clients to read the last events after the shutdown grace."""
_LINGER_S: Final = 1.0
_MOST_LINGERING: Final = 32
"""How long a connection waits for its client to close, and how many do, beside `max_connections`."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many clients a server accepts, and how long it waits for each of them. [connections, s]"""

    max_connections: int
    header_timeout_s: float
    body_timeout_s: float
    idle_timeout_s: float
    write_timeout_s: float
    shutdown_grace_s: float


class Connections:
    """State shared by the connections of one server; each is told apart by its transport."""

    def __init__(self, limits: ConnectionLimits, cors_origins: Collection[str] = ()) -> None:
        """`cors_origins`: see the setting."""
        self.limits = limits
        self.cors_origins = cors_origins
        self.waiting: dict[Transport, None] = {}
        """Connections on which no request is being served, longest idle first."""
        self.lingering: set[Transport] = set()
        """Connections that have ended, and wait for their clients to close."""

    def close_longest_waiting(self) -> bool:
        """Make room for another connection; return False if none is idle."""
        longest_waiting = next(iter(self.waiting), None)
        if longest_waiting is None:
            return False
        del self.waiting[longest_waiting]
        longest_waiting.close()
        return True

    def linger(self, transport: Transport) -> bool:
        """Close once the client has, or soon: a connection that closes before it has read everything is reset, and the
        client may see that instead of the last answer. Return False if it closes at once.
        """
        self.waiting.pop(transport, None)
        if len(self.lingering) >= _MOST_LINGERING or not transport.can_write_eof():
            transport.close()
            return False
        transport.write_eof()
        self.lingering.add(transport)
        get_running_loop().call_later(_LINGER_S, transport.close)
        return True

    def lost(self, transport: Transport) -> None:
        """Forget a closed connection."""
        self.waiting.pop(transport, None)
        self.lingering.discard(transport)
