"""TCP ports for the tests' servers, each port unique, however many test runs share the machine.

A port that the kernel assigns and releases may go to another process, or to an outgoing connection, before the intended
server listens on it. So the ports come from below the kernel's own range (32768 and up unless configured otherwise),
and each process of a test run has its own slice: it holds an abstract Unix socket with the slice's number, which is
visible in the same network namespace as the ports and disappears with the process.
"""

import errno
import itertools
import socket
from functools import cache

_FIRST = 16_000
_SLICE = 400
_SLICES = 40


class NoPortLeft(Exception):
    """All slices are in use, or all ports of this process's slice."""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free now, and that no other test process gets."""
    _, turns = _own_slice()
    for port in itertools.islice(turns, _SLICE):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
        return port
    raise NoPortLeft(f"all {_SLICE} ports of this test process are in use")


@cache
def _own_slice() -> tuple[socket.socket, "itertools.cycle[int]"]:
    """Return the socket that holds this process's slice, and an iterator over the slice's ports."""
    for number in range(_SLICES):
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0orcastream-tests-ports-{number}")
        except OSError as error:
            held.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        first = _FIRST + number * _SLICE
        return held, itertools.cycle(range(first, first + _SLICE))
    raise NoPortLeft(f"there are ports for {_SLICES} test processes on one machine, and as many run")
