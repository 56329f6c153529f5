"""How long a process lets others wait: its health is asked for all the time, from a process of its own."""

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
    """Asks `127.0.0.1:port`, the process `pid`, for /health/live; `longest_held_s` since it was last looked at.

    A process was held for as long as an answer took, less what its main thread waited for a core, and no longer
    than it computed meanwhile: what a machine does not give it time for is no fault of an input.
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
        """Since the last call, until now; infinity where no answer comes."""
        asked = time.monotonic()
        while self._begun.value < asked:
            if time.monotonic() > asked + timeout_s or not self._process.is_alive():
                return float("inf")
            time.sleep(0.0005)
        held, self._held.value = self._held.value, 0.0
        return float(held)

    @property
    def longest_wait_s(self) -> float:
        """Of all answers, whatever the reason."""
        return float(self._waited.value)

    def close(self) -> None:
        """Ask no more."""
        self._process.kill()
        self._process.join()


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used, all its threads together."""
    return time.clock_gettime((~pid << 3) | 2)  # its clock's number, as clock_getcpuclockid() makes it


def coreless_s(pid: int) -> float:
    """For how long the main thread of a process was ready to run, and had no core; 0 where the kernel does not tell."""
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
