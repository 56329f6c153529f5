"""TCP ports for the servers that we start."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from orcastream.cli.errors import UserError


class PortUnavailable(UserError):
    """A port on which we cannot listen; the message is a sentence for the user."""


def claimable_port(host: str, port: int, setting: str) -> int:
    """Return `port` if it is free on `host`, or a free port for 0. Raises PortUnavailable otherwise.

    `setting` is the name of the setting that the port came from.
    """
    family, _, _, _, address = _resolve(host, port, setting)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise PortUnavailable(f"{setting}: port {port} on {host} {reason}; allowed: a free port, or 0") from None
        return int(probe.getsockname()[1])


@contextmanager
def held_port(host: str, port: int, setting: str) -> Iterator[int]:
    """Hold a port that only our processes can share (SO_REUSEPORT); errors as in `claimable_port`.

    This process does not listen on it: it reserves the port while none of our processes is alive.
    """
    claimable_port(host, port, setting)
    family, _, _, _, address = _resolve(host, port, setting)
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(address)
        yield int(holder.getsockname()[1])


def _resolve(host: str, port: int, setting: str) -> tuple[int, int, int, str, tuple[str, int]]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]  # type: ignore[return-value]
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a host name"
        name = setting.replace("port", "host")
        raise PortUnavailable(f"{name}: got {host!r}, allowed: an address or a name of this machine ({why})") from None
