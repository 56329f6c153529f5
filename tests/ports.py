"""TCP ports for the servers of the tests, no port for two of them, however many test runs share the machine.

A port that the kernel gives out and takes back may go to another process, or to an outgoing connection, before the
server that it was meant for listens on it. So the ports come from below the kernel's own range (32768 and up unless
configured otherwise), and each process of a test run has a slice of them to itself: it holds an abstract Unix socket
with the slice's number, which is known in the same network namespace as the ports and goes with the process.
"""

import errno
import itertools
import socket
from functools import cache

_FIRST = 16_000
_SLICE = 400
_SLICES = 40


class NoPortLeft(Exception):
    """All slices are taken, or all ports of this process's slice."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now, and that no other test process is given."""
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
    """The socket that holds this process's slice, and the slice's ports in turn."""
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
