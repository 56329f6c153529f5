"""How long a process makes others wait: a separate process polls its health continuously."""

import ctypes
import multiprocessing
import socket
import time
from pathlib import Path
from typing import Final

from tests.parent import die_with_parent

_INTERVAL_S: Final = 0.003
_SPAWN = multiprocessing.get_context("fork")


class Probe:
    """Polls /health/live of the process `pid` at `127.0.0.1:port`; `longest_held_s` since the last read.

    A process was held for the time of an answer, less its main thread's wait for a core, and at most for its CPU time
    meanwhile: an input is not at fault for time that the machine did not grant.
    """

    def __init__(self, port: int, pid: int) -> None:
        self._begun = _SPAWN.Value(ctypes.c_double, 0.0)
        """When the newest question that has its answer was asked."""
        self._held = _SPAWN.Value(ctypes.c_double, 0.0)
        self._waited = _SPAWN.Value(ctypes.c_double, 0.0)
        arguments = (port, pid, self._begun, self._held, self._waited)
        self._process = _SPAWN.Process(target=_ask_for_ever, args=arguments, daemon=True)
        self._process.start()

    def longest_held_s(self, timeout_s: float = 20) -> float:
        """Return the longest hold since the last call; infinity if no answer comes."""
        asked = time.monotonic()
        while self._begun.value < asked:
            if time.monotonic() > asked + timeout_s or not self._process.is_alive():
                return float("inf")
            time.sleep(0.0005)
        held, self._held.value = self._held.value, 0.0
        return float(held)

    @property
    def longest_wait_s(self) -> float:
        """Return the longest wait of all answers, whatever the reason."""
        return float(self._waited.value)

    def close(self) -> None:
        """Stop polling."""
        self._process.kill()
        self._process.join()


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, over all its threads."""
    return time.clock_gettime((~pid << 3) | 2)  # its clock's number, as from clock_getcpuclockid()


def coreless_s(pid: int) -> float:
    """Return how long the main thread of a process was runnable without a core; 0 if the kernel does not report it."""
    told = Path(f"/proc/{pid}/task/{pid}/schedstat")
    return int(told.read_text().split()[1]) / 1e9 if told.exists() else 0.0


def _ask_for_ever(port: int, pid: int, begun: ctypes.c_double, held: ctypes.c_double, waited: ctypes.c_double) -> None:
    die_with_parent()
    while True:
        begin, used, coreless = time.monotonic(), cpu_s(pid), coreless_s(pid)
        _ask(port)
        wait = time.monotonic() - begin
        waited.value = max(waited.value, wait)
        held.value = max(held.value, min(wait - (coreless_s(pid) - coreless), cpu_s(pid) - used))
        begun.value = begin
        time.sleep(_INTERVAL_S)


def _ask(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while connection.recv(65536):
            pass
