"""The sockets that a gateway listens on."""

import socket


class CannotListen(ValueError):
    """A port cannot be listened on; the message is a sentence that names the setting."""


def listening(host: str, port: int, setting: str, *, shared: bool = False) -> list[socket.socket]:
    """Bind sockets to all addresses of `host`; `shared`: others listen on the same port, too. Raises CannotListen."""
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in _addresses(host, port):
            one = socket.socket(family, kind, protocol)
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
    except (OSError, UnicodeError) as error:
        for one in bound:
            one.close()
        why = error.strerror if isinstance(error, OSError) else "not a valid host name"
        raise CannotListen(f"{setting}: port {port} on {host} cannot be listened on ({why})") from None
    return bound


def _addresses(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(found))  # type: ignore[arg-type]  # those of IPv6 have four parts
